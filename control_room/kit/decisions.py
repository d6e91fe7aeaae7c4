"""Prepares decisions of schedulers for pages."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bus.decisions import Decision, Record, RecordedHost, tie_sentence

MOST_WEIGHERS = 5


Scores = Callable[[Record, str], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class RankedRow:
    """A row of the table of ranked hosts: its scores by weigher, and why it was not used."""

    host: str
    root: str
    total: float
    scores: tuple[float, ...]
    chosen: bool
    why_not: str


@dataclass(frozen=True)
class DecisionShown:
    """A scheduler's decision as a page shows it: with its weighers' names, and its hosts, the best first."""

    decision: Decision
    weighers: tuple[str, ...] = ()
    ranked: tuple[RankedRow, ...] = ()
    tie: str = ""  # says that a hash decided between hosts with equal scores; empty: scores decided


def decision_shown(decision: Decision, scores: Scores, chosen: str = "") -> DecisionShown:
    """Return a stored decision as the page shows it, with the weighers of the largest multipliers."""
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
            scores=tuple(scored.get(name, 0.0) + 0.0 for name in weighers),  # + 0.0 converts -0 to 0
            chosen=host.root == chosen,
            why_not=host.refused or refused,
        )

    ranked = sorted(
        map(row, record.hosts),
        key=lambda shown_host: (bool(shown_host.why_not), -shown_host.total, not shown_host.chosen),
    )
    tie = tie_sentence(record, {each.root: each.total for each in ranked}, chosen)
    return DecisionShown(decision, weighers, tuple(ranked), tie)
