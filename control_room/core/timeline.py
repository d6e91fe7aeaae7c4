"""Attempts of a build along one line of time."""

from collections.abc import Sequence
from dataclasses import dataclass

from bus.messages import Attempt


@dataclass(frozen=True, kw_only=True)
class AttemptShown:
    number: int
    host: str
    agent: str
    outcome: str
    cause: str
    after: float | None  # seconds since the first order
    took: float | None
    left: float  # of 100, where it begins
    width: float


def timeline(attempts: Sequence[Attempt]) -> list[AttemptShown]:
    """Return a row for each attempt; an attempt with times has a bar."""
    began = min((attempt.started for attempt in attempts if attempt.started), default=0.0)
    ended = max((attempt.ended for attempt in attempts if attempt.ended), default=began)
    whole = max(ended - began, 1e-6)
    told = []
    for number, attempt in enumerate(attempts, 1):
        known = bool(attempt.started and attempt.ended)
        after = max(0.0, attempt.started - began) if attempt.started else None
        took = max(0.0, attempt.ended - attempt.started) if known else None
        left = 100 * (after or 0.0) / whole if known else 0.0
        width = max(0.5, 100 * (took or 0.0) / whole) if known else 0.0
        told.append(
            AttemptShown(
                number=number,
                host=attempt.host,
                agent=attempt.agent,
                outcome=attempt.outcome,
                cause=attempt.cause,
                after=after,
                took=took,
                left=min(left, 99.5),
                width=min(width, 100 - min(left, 99.5)),
            )
        )
    return told
