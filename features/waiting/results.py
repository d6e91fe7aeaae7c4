"""Waiting requests to evaluate, and the results of their evaluation."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Struct

from bus.decisions import Decision
from bus.messages import BuildRequested
from bus.vocabulary import Message
from features.waiting.core.waiting_request import Subject
from features.waiting.tables.queued import QueuedRequest

PATIENCE = 1.0  # seconds before a step that failed is repeated
SOON = 0.2


@dataclass(frozen=True, slots=True)
class Woken:
    """A waiting request to evaluate now, and the hosts that it may not use."""

    queued: QueuedRequest
    excluding: frozenset[str]
    swept: bool = False  # True if only the periodic search of all hosts found a host for the request


class Evaluation(Struct, frozen=True):
    """The part of an order that marks the evaluation of a waiting request: the request is stored already."""


class Ended(Struct, frozen=True):
    """The result of an evaluation that ends a waiting request, with the messages to publish."""

    messages: Sequence[Message]


class Renewal(Struct, frozen=True):
    """A waiting request with a subject that changed since its last evaluation."""

    message: BuildRequested
    subject: Subject


class StillWaiting(Struct, frozen=True):
    """The result of an evaluation in which no host fits a waiting request, with the reason."""

    lacks: str
    decision: Decision
    renewal: Renewal | None = None
    wakes_on: str = ""  # key of the commits that may help, if a rule refused the claim


class RetryLater(Struct, frozen=True):
    """The result of an evaluation that failed; it is repeated after `after` seconds, then after twice as
    long.
    """

    after: float
    renewal: Renewal | None = None


Evaluated = Ended | StillWaiting | RetryLater
# Ends what a message placed that no conductor receives. Returns the message to publish in its place, or None.
UndoPlaced = Callable[[Any], Awaitable[Message | None]]
Results = Sequence[tuple[QueuedRequest, Evaluated]]


class WaitEvaluator(Protocol):
    """Evaluates waiting requests; each method returns results in the sequence of the requests."""

    undo_placed: UndoPlaced

    async def evaluate(self, woken: Sequence[Woken]) -> Sequence[Evaluated]:
        """Search hosts for waiting requests."""

    async def end(self, expired: Sequence[Woken]) -> Sequence[Evaluated]:
        """Search hosts for expired requests a last time, and end those without a host."""

    async def fail(self, woken: Sequence[Woken], why: str) -> Sequence[Evaluated]:
        """End waiting requests without an evaluation; those that hold hosts already are published."""

    def is_placed(self, message: Message) -> bool:
        """Return whether a message of a result says that a request got its host."""
