"""Dead letters and refusals for envelopes that cannot be handled."""

import msgspec

from bus.clock import Clock
from bus.protocol import DeadLetter, Envelope
from bus.worker import cell_of


def letter_of(envelope: Envelope, queue: str, reason: str, trace: str, now: float) -> DeadLetter:
    """Return a dead letter: the readers of this queue could not handle the envelope."""
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
    )


def refusal_of(question: Envelope, why: str, clock: Clock, *, again: bool) -> Envelope:
    """Return a refusal of the query, or, with `again`, the advice to repeat it."""
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
