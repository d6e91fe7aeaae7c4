"""A decision prepared for a page: hosts considered, hosts removed in each step, and the scores of the
best.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bus.decisions import Decision, Record, RecordedHost

MOST_WEIGHERS = 5

Scores = Callable[[Record, str], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class FilterStep:
    constraint: str
    left: int
    removed: int
    share: float  # that is left of all
    hosts: tuple[str, ...]
    unnamed: int  # so many more were removed


@dataclass(frozen=True, kw_only=True)
class RankedRow:
    host: str
    root: str
    total: float
    scores: tuple[float, ...]
    chosen: bool
    why_not: str


@dataclass(frozen=True, kw_only=True)
class DecisionShown:
    considered: int
    steps: tuple[FilterStep, ...]
    weighers: tuple[str, ...]
    ranked: tuple[RankedRow, ...]
    nearest: tuple[tuple[str, str], ...]  # host, what it lacks
    helps: tuple[str, ...]
    refused: tuple[str, ...]
    notes: tuple[str, ...]


def shown(decision: Decision, scores: Scores, chosen: str = "") -> DecisionShown:
    weighers, ranked = _ranked(decision.record, scores, chosen)
    return DecisionShown(
        considered=decision.considered,
        steps=tuple(
            FilterStep(
                constraint=removal.constraint,
                left=removal.left,
                removed=removal.removed,
                share=removal.left / decision.considered if decision.considered else 0.0,
                hosts=removal.hosts,
                unnamed=max(0, removal.removed - len(removal.hosts)) if removal.hosts else 0,
            )
            for removal in decision.removals
        ),
        weighers=weighers,
        ranked=ranked,
        nearest=tuple((miss.host, miss.lacks) for miss in decision.nearest),
        helps=decision.helps,
        refused=decision.refused,
        notes=decision.notes,
    )


def _ranked(
    record: Record | None, scores: Scores, chosen: str
) -> tuple[tuple[str, ...], tuple[RankedRow, ...]]:
    if record is None:
        return (), ()
    scales = sorted(record.scales, key=lambda scale: -abs(scale.multiplier))
    weighers = tuple(scale.weigher for scale in scales[:MOST_WEIGHERS])
    rows = [_row(host, record, scores(record, host.root), weighers, chosen) for host in record.hosts]
    return weighers, tuple(sorted(rows, key=lambda row: (bool(row.why_not), -row.total, not row.chosen)))


def _row(
    host: RecordedHost, record: Record, scored: Mapping[str, float], weighers: Sequence[str], chosen: str
) -> RankedRow:
    turned_down = "placement refused it" if host.root in record.turned_down else ""
    return RankedRow(
        host=host.host,
        root=host.root,
        total=scored.get("total", 0.0),
        scores=tuple(scored.get(name, 0.0) + 0.0 for name in weighers),  # never -0
        chosen=host.root == chosen,
        why_not=host.refused or turned_down,
    )
