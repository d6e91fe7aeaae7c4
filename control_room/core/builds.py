"""The scores of the best hosts of a decision, for a page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bus.decisions import Decision, Record, RecordedHost
from bus.messages import Attempt

MOST_WEIGHERS = 5

Scores = Callable[[Record, str], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class RankedRow:
    host: str
    root: str
    total: float
    scores: tuple[float, ...]
    chosen: bool
    why_not: str


@dataclass(frozen=True)
class DecisionShown:
    """A decision with the names of its weighers and its hosts, best first."""

    decision: Decision
    weighers: tuple[str, ...] = ()
    ranked: tuple[RankedRow, ...] = ()


def shown(decision: Decision, scores: Scores, chosen: str = "") -> DecisionShown:
    record = decision.record
    if record is None:
        return DecisionShown(decision)
    scales = sorted(record.scales, key=lambda scale: -abs(scale.multiplier))
    weighers = tuple(scale.weigher for scale in scales[:MOST_WEIGHERS])

    def row(host: RecordedHost) -> RankedRow:
        scored = scores(record, host.root)
        refused = "placement refused it" if host.root in record.turned_down else ""
        return RankedRow(
            host=host.host,
            root=host.root,
            total=scored.get("total", 0.0),
            scores=tuple(scored.get(name, 0.0) + 0.0 for name in weighers),  # never -0
            chosen=host.root == chosen,
            why_not=host.refused or refused,
        )

    ranked = sorted(map(row, record.hosts), key=lambda one: (bool(one.why_not), -one.total, not one.chosen))
    return DecisionShown(decision, weighers, tuple(ranked))


@dataclass(frozen=True)
class AttemptShown:
    number: int
    attempt: Attempt
    after: float | None  # seconds since the first order
    took: float | None
    left: float = 0.0  # of 100, where its bar begins
    width: float = 0.0


def timeline(attempts: Sequence[Attempt]) -> list[AttemptShown]:
    """Return a row for each attempt of a build; an attempt with times has a bar."""
    began = min((attempt.started for attempt in attempts if attempt.started), default=0.0)
    ended = max((attempt.ended for attempt in attempts if attempt.ended), default=began)
    scale = 100 / max(ended - began, 1e-6)
    rows = []
    for number, attempt in enumerate(attempts, 1):
        after = max(0.0, attempt.started - began) if attempt.started else None
        if after is None or not attempt.ended:
            rows.append(AttemptShown(number, attempt, after, None))
            continue
        took, left = max(0.0, attempt.ended - attempt.started), min(after * scale, 99.5)
        rows.append(AttemptShown(number, attempt, after, took, left, min(max(0.5, took * scale), 100 - left)))
    return rows
