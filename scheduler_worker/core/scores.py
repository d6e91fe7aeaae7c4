"""Computes scores of hosts from their weighers' values, chooses a host for each instance, and records
the choice so that it can be computed again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bus.candidates import Floats
from bus.decisions import Record, RecordedHost, RecordedScale
from scheduler_worker.core.fitting import MOST, Entry, FoundHosts, with_more
from scheduler_worker.core.host_hashes import drawn, tie
from scheduler_worker.core.host_order import OUR_HOSTS, UNKNOWN_HOSTS
from scheduler_worker.core.rule import Alternative, HostFacts, OneHost, RuleError, View, Weigher

Scales = Sequence[RecordedScale]

# A host that is an alternate of an instance counts less by this for each weigher of candidates, so that other
# instances get other alternates.
LESS = 0.05
Values = tuple[float, ...]  # one host's value of each weigher in `_scales_of`
RECORDED_REFUSED = 2  # better hosts in a record that were rejected
AVOIDED = "placement refused it a moment ago"


@dataclass(frozen=True, slots=True)
class Scale:
    """A weigher, with its lowest and highest value over all fitting hosts before the first choice."""

    weigher: Weigher
    values: Floats
    recorded: RecordedScale
    of_ways: bool = False  # whether it weighs candidates; then `values` are estimates

    def read(self, view: View, alternative: Alternative) -> float:
        """Return the weigher's value for one host; a value that is not finite becomes the lowest one."""
        value = float(self.weigher.value(view, alternative))
        return value if -MOST < value < MOST else float(_finite(np.array(value), self.recorded.lowest))


def _scales_of(found: FoundHosts) -> tuple[Scale, ...]:
    """Return each weigher that gives hosts different values, with its lowest and its highest value."""
    scales = []
    view = found.view
    for weigher in found.policy.weighers if found.positions.size else ():
        if not weigher.multiplier and isinstance(view.override(weigher.key, 0.0), float):
            continue
        if weigher.of_ways is not None:  # below
            continue
        values: Floats = np.asarray(weigher.value(view, found.alternative), np.float64)
        if values.ndim == 0:
            continue
        if len(values) != found.positions.size:
            why = ValueError(f"{len(values)} numbers for {found.positions.size} hosts")
            raise RuleError(f"the weigher {weigher.name}", why)
        least, highest = float(values.min()), float(values.max())
        if not -MOST < least <= highest < MOST:
            values = _finite(values, weigher.lowest or 0.0)
            least, highest = float(values.min()), float(values.max())
        lowest = least if weigher.lowest is None else weigher.lowest
        if least == highest or highest <= lowest:
            continue
        highest = max(highest, lowest + weigher.least_span)
        clamped = weigher.lowest is not None
        recorded = RecordedScale(weigher.name, weigher.multiplier, lowest, highest, clamped)
        scales.append(Scale(weigher, values, recorded))
    for weighed in found.way_values:
        weigher = weighed.weigher
        decided_by = "" if weigher.decided_by is None else weigher.decided_by()
        recorded = RecordedScale(weigher.name, weigher.multiplier, 0.0, 1.0, False, decided_by)
        scales.append(Scale(weighed.weigher, weighed.estimates, recorded, of_ways=True))
    return tuple(scales)


def _worths(scales: Sequence[Scale], found: FoundHosts) -> Floats:
    """Return the score of each host. With the setting `near`, nearly equal scores are rounded to equal."""
    count, near = found.positions.size, found.policy.near
    score, counts = np.zeros(count), np.empty(count)
    for scale in scales:
        values, lowest, highest = scale.values, scale.recorded.lowest, scale.recorded.highest
        if scale.recorded.clamped:
            values = np.maximum(values, lowest)
        if lowest:
            values = values - lowest
        np.divide(values, highest - lowest, out=counts)
        multiplier = found.view.override(scale.weigher.key, scale.weigher.multiplier)
        if scale.of_ways:
            multiplier = np.maximum(multiplier, 0.0)
        if np.ndim(multiplier) or multiplier != 1.0:
            counts *= multiplier
        score += counts
    return np.rint(score / near) if near else score


def _points(scales: Scales, values: Sequence[float], multipliers: Sequence[float]) -> list[float]:
    """Return each weigher's contribution to the score of one host."""
    return [
        (0.0 if scale.clamped and value < scale.lowest else value - scale.lowest)
        / (scale.highest - scale.lowest)
        * multiplier
        for scale, value, multiplier in zip(scales, values, multipliers, strict=True)
    ]


def _score(scales: Scales, values: Sequence[float], multipliers: Sequence[float], near: float) -> float:
    score = 0.0
    for counts in _points(scales, values, multipliers):
        score += counts
    return float(round(score / near)) if near else score


def _multipliers(scales: Scales, host: RecordedHost) -> list[float]:
    return [host.multipliers.get(scale.weigher, scale.multiplier) for scale in scales]


def scores(scales: Scales, host: RecordedHost) -> dict[str, float]:
    """Return each weigher's contribution to a host's score, by name, and their sum as `total`."""
    points = _points(scales, host.values, _multipliers(scales, host))
    by_weigher = {scale.weigher: round(counts, 6) for scale, counts in zip(scales, points, strict=True)}
    return {**by_weigher, "total": round(sum(points), 6)}


def _finite(values: Floats, unknown: float) -> Floats:
    return np.nan_to_num(values, nan=unknown, posinf=MOST, neginf=-MOST)


class Weights:
    """Computes the scores of all hosts of an evaluation; hosts with equal weigher values share one result."""

    def __init__(self, found: FoundHosts) -> None:
        self.found = found
        self._scales = scales = _scales_of(found)
        self.worths = _worths(scales, found)
        self.recorded = tuple([scale.recorded for scale in scales])
        self._overriding = any(found.view.now.limits(scale.weigher.key) for scale in scales)
        self._multipliers = [scale.weigher.multiplier for scale in scales]
        self._reads = [scale.weigher.value for scale in scales if not scale.of_ways]
        # whether candidates are weighed: the last scales are theirs, and scores before a choice are estimates
        self.weighs_ways = bool(found.way_values)
        self._multipliers_of_ways = [weighed.weigher.multiplier for weighed in found.way_values]
        self._one_more: float | None = None
        self._worth_of: dict[Values, float] = {}
        self._scores_of: dict[Values, dict[str, float]] = {}

    def at_first(self, index: int) -> Values:
        """Return each weigher's value for a host before any host of this evaluation was chosen."""
        return tuple([scale.values.item(index) for scale in self._scales])

    def read(self, index: int, facts: HostFacts) -> Values:
        """Return each weigher's value for a host with these facts, and for its candidates as of now."""
        view, alternative = OneHost(facts), self.found.alternative
        values = tuple([float(value(view, alternative)) for value in self._reads])
        if not sum(map(abs, values)) < MOST:  # not below the limit: a value may be infinite or unknown
            values = tuple([scale.read(view, alternative) for scale in self._scales if not scale.of_ways])
        return (*values, *self.found.values_of_best(index)) if self.weighs_ways else values

    def worth(self, facts: HostFacts, values: Values) -> float:
        """Return the score of a host with these values of the weighers."""
        near = self.found.policy.near
        if self._overriding:
            return _score(self.recorded, values, self._overridden(facts), near)
        known = self._worth_of.get(values)
        if known is None:
            known = self._worth_of[values] = _score(self.recorded, values, self._multipliers, near)
        return known

    def one_more(self, index: int) -> float:
        """Return how much one more instance lowers a host's score; computed once and used for all hosts."""
        if self._one_more is None:
            now = self.found.facts(index)
            then = with_more(now, self.found.alternative.asked, 1)
            self._one_more = self.worth(now, self.read(index, now)) - self.worth(then, self.read(index, then))
            self._one_more += sum(map(abs, self._multipliers_of_ways)) * LESS
        return self._one_more

    def _overridden(self, facts: HostFacts) -> list[float]:
        view = OneHost(facts)
        multipliers = [view.override(scale.weigher.key, scale.weigher.multiplier) for scale in self._scales]
        return [
            max(multiplier, 0.0) if scale.of_ways else multiplier
            for scale, multiplier in zip(self._scales, multipliers, strict=True)
        ]

    def overrides(self, index: int) -> dict[str, float]:
        """Return by weigher the multipliers of the host's aggregates, which override those of the
        settings.
        """
        if not self._overriding:
            return {}
        found = zip(self.recorded, self._overridden(self.found.facts(index)), strict=True)
        return {scale.weigher: number for scale, number in found if number != scale.multiplier}

    def scores(self, host: RecordedHost) -> dict[str, float]:
        """Return each weigher's contribution to a host's score, by name, and their sum as `total`. The caller
        must not change the returned mapping.
        """
        if host.multipliers:
            return scores(self.recorded, host)
        known = self._scores_of.get(host.values)
        if known is None:
            known = self._scores_of[host.values] = scores(self.recorded, host)
        return known


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of computing a recorded decision again: the chosen host, and all hosts sorted by score."""

    host: RecordedHost | None  # the chosen host; None: every recorded host was rejected
    order: tuple[RecordedHost, ...] = ()  # the accepted hosts, best first, before one is drawn at random


def replay(build: str, record: Record) -> Replayed:
    """Choose a build's host again from its decision record, to verify or explain the recorded choice."""

    def place(host: RecordedHost) -> tuple[int, float, int, int]:  # the same order as in `HostOrder`
        score = _score(record.scales, host.values, _multipliers(record.scales, host), record.near)
        return host.outside + host.unknown, -score, host.chosen, tie(record.seed, host.root)

    order = sorted((host for host in record.hosts if not host.refused), key=place)
    best = list(order)
    if best:
        best.insert(0, best.pop(drawn(record.seed, build, min(record.subset, len(best)))))
    left = (host for host in best if host.root not in record.turned_down)
    return Replayed(next(left, None), tuple(order))


class ChoiceRecorder:
    """Makes the decision record for each choice of an evaluation."""

    def __init__(self, seed: str, weights: Weights) -> None:
        self.values: dict[int, Values] = {}  # index of a host with a changed score → its present values
        self.hosts: dict[int, RecordedHost] = {}  # index of an accepted host → its part of the record
        self._seed = seed
        self._weights = weights
        self._passed_over: list[Entry] = []  # the best hosts that filters rejected

    def pass_over(self, entry: Entry) -> None:
        """Add to the decision record a rejected host that scored higher than the chosen host."""
        if entry[2] == 0 and len(self._passed_over) < RECORDED_REFUSED:
            self._passed_over.append(entry)

    def record(self, best: Sequence[Entry], avoided: Sequence[Entry]) -> Record:
        """Return the decision record of a choice: the best hosts with their weighers' values, and some better
        hosts with the reason why they were not chosen: a filter rejected them, or placement refused them
        before (`avoided`).
        """
        found = self._weights.found
        shown = [(entry, "") for entry in best]
        if avoided or self._passed_over or found.policy.subset > 1:
            shown += [(entry, AVOIDED) for entry in avoided[:RECORDED_REFUSED]]
            for entry in self._passed_over:
                if refusal := found.refused.get(entry[-1]):
                    shown.append((entry, f"{refusal[0].name}: {refusal[1]}"))
            shown.sort()
        return Record(
            flavor=found.alternative.alternative_index,
            seed=self._seed,
            near=found.policy.near,
            subset=found.policy.subset,
            scales=self._weights.recorded,
            hosts=tuple([self._recorded(*each) for each in shown]),
        )

    def _recorded(self, entry: Entry, refused: str) -> RecordedHost:
        index, weights = entry[-1], self._weights
        known = None if refused else self.hosts.get(index)
        if known is None:
            host = weights.found.host(index)
            known = RecordedHost(
                host.uuid,
                host.host,
                self.values.get(index) or weights.at_first(index),
                refused,
                weights.overrides(index),
                entry[2],
                entry[0] > OUR_HOSTS,
                entry[0] == UNKNOWN_HOSTS,
            )
            if not refused:
                self.hosts[index] = known
        return known
