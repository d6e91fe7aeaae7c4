"""Decides whether a message whose handler raised an exception is handled again or becomes a dead
letter.

Handling is retried without a limit while a service is unreachable, for some minutes while a message to
publish has no consumer, and a few times after an unexpected exception (a bug).
"""

import traceback
from dataclasses import dataclass

import msgspec

from bus.clock import Clock
from bus.errors import (
    AnswerRefused,
    AnswerUnreadable,
    BrokerRefused,
    Poison,
    Retry,
    TooBig,
    Unavailable,
    Unconfirmed,
    Unroutable,
)
from bus.protocol import DeadLetter, Envelope
from bus.worker import cell_of

FAULT_DELAYS = (0.1, 0.1, 0.5, 0.5, 1.0)  # seconds before each further try after a bug
MAX_UNROUTABLE = 60  # tries, which take about five minutes with the pauses between them
LONGEST_PAUSE = 5.0
REPEATED_SECONDS = 5.0  # until a message for a client that was not confirmed is repeated; each time doubled
LONGEST_REPEAT = 60.0  # the longest of these times


@dataclass(frozen=True, slots=True)
class Again:
    """The decision to deliver a message to its handler again after this many seconds."""

    after: float
    why: str = ""  # the reason, for a logged warning; empty if the handler itself raised Retry
    away: bool = False  # a service is unreachable: the sender of a query is informed immediately
    fault: bool = False  # the try counts as a bug
    unroutable: bool = False  # the try counts as one without a consumer for an emitted message


@dataclass(frozen=True, slots=True)
class Dead:
    """The decision to move a message to the dead letters, with the reason."""

    reason: str
    trace: str = ""
    invalid: bool = False  # the message itself is the cause: its sender gets an answer
    sender: str = ""  # as in DeadLetter


def verdict(problem: Exception, envelope: Envelope) -> Again | Dead:
    """Return what happens to a message whose handler raised this exception: it is delivered again or
    dead-lettered.
    """
    match problem:
        case Retry():
            return Again(problem.after)
        case Poison():
            return Dead(str(problem), invalid=True)
        case AnswerUnreadable():
            pass  # a bug: until the versions of both processes are equal, a retry may succeed
        case AnswerRefused() | BrokerRefused() | TooBig():
            return Dead(str(problem))
        case Unconfirmed():  # not logged for each message: `bus.rabbit.client_channels` logs the client
            return Again(repeated_after(envelope))
        case Unavailable():
            return Again(_pause(envelope), str(problem), away=True)
        case Unroutable() if envelope.unroutable + 1 < MAX_UNROUTABLE:
            return Again(_pause(envelope), str(problem), unroutable=True)
        case Unroutable():
            return Dead(str(problem))
    trace = "".join(traceback.format_exception(problem))
    if envelope.faults < len(FAULT_DELAYS):
        return Again(FAULT_DELAYS[envelope.faults], trace, fault=True)
    return Dead(f"{type(problem).__name__}: {problem}", trace)


def _pause(envelope: Envelope) -> float:
    return min(0.5 * envelope.attempt, LONGEST_PAUSE)


def repeated_after(envelope: Envelope) -> float:
    """Return the seconds until a message is handled again because its result was not confirmed."""
    return min(REPEATED_SECONDS * 2.0 ** min(envelope.attempt - 1, 8), LONGEST_REPEAT)


def letter_of(
    envelope: Envelope, queue: str, reason: str, trace: str, now: float, sender: str = ""
) -> DeadLetter:
    """Return the dead letter for a message of this queue that could not be handled. `sender`: as in
    DeadLetter.
    """
    return DeadLetter(
        id=envelope.id,
        queue=queue,
        key=envelope.key,
        type=envelope.type,
        reason=reason,
        first_died=envelope.first_died or now,
        died=now,
        attempt=envelope.attempt,
        correlation=envelope.correlation,
        body=bytes(envelope.body),
        traceback=trace,
        cell=cell_of(queue),
        sender=sender,
    )


def refusal_of(question: Envelope, why: str, clock: Clock, *, again: bool) -> Envelope:
    """Return an envelope that refuses a query; `again` permits the requester to repeat the query."""
    return Envelope(
        id=clock.uuid(),
        type="",
        key=question.reply_to,
        body=msgspec.Raw(b"null"),
        correlation=question.correlation or question.id,
        causation=question.id,
        sent_at=clock.now(),
        error=why or "no reason was given",
        again=again,
    )
