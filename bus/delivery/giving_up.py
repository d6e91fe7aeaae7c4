"""What is made of an envelope that came to nothing: a dead letter, and a refusal for whoever asked."""

import msgspec

from bus.clock import Clock
from bus.protocol import DeadLetter, Envelope
from bus.worker import cell_of


def letter_of(envelope: Envelope, queue: str, reason: str, trace: str, now: float) -> DeadLetter:
    """It could not be handled by those who read this queue."""
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
    """There is no answer to this question; or none yet, and it may be asked `again`."""
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
