"""Scores of hosts: the values of weighers scaled from the lowest to the highest value of all fitting hosts,
and the record of a choice, from which the decision can be computed again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bus.candidates import Floats
from bus.decisions import Record, RecordedHost, RecordedScale
from scheduler_worker.core.fitting import with_more
from scheduler_worker.core.host_map import drawn, tie
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.ranking_order import OUR_HOSTS, UNKNOWN_HOSTS, Entry
from scheduler_worker.core.rejections import FoundHosts, Refusal
from scheduler_worker.core.rule import Alternative, HostFacts, OneHost, View, Weigher
from scheduler_worker.core.view import AllHosts

Scales = Sequence[RecordedScale]

MOST = 1e300  # what is beyond counts as this
Values = tuple[float, ...]  # values of one host for the weighers that differ between hosts
Place = tuple[int, float, int, int]  # least first: tier, −worth, how often chosen, tie
RECORDED_REFUSED = 2  # rejected hosts in the record that would have been better
AVOIDED = "placement refused it a moment ago"


@dataclass(frozen=True, slots=True)
class Scale:
    """A weigher with the lowest and the highest value of all fitting hosts, fixed for an evaluation."""

    weigher: Weigher
    lowest: float
    highest: float
    values: Floats
    clamps: bool  # is any of them below the lowest?

    @property
    def key(self) -> str:
        return self.weigher.spoken_of_as

    def recorded(self) -> RecordedScale:
        clamped = self.weigher.lowest is not None
        return RecordedScale(self.weigher.name, self.weigher.multiplier, self.lowest, self.highest, clamped)

    def read(self, view: View, alternative: Alternative) -> float:
        """Return the value of the weigher for one host."""
        value = float(self.weigher.value(view, alternative))
        return value if -MOST < value < MOST else float(_finite(np.array(value), self.lowest))


def scales_of(
    weighers: Sequence[Weigher], view: View, alternative: Alternative, count: int
) -> tuple[Scale, ...]:
    """Return the scales of the weighers whose values differ between hosts."""
    if not count:
        return ()
    scales = []
    for weigher in weighers:
        if not weigher.multiplier and isinstance(view.override(weigher.spoken_of_as, 0.0), float):
            continue
        values: Floats = np.asarray(weigher.value(view, alternative), np.float64)
        if values.ndim == 0:
            continue
        least, highest = float(values.min()), float(values.max())
        if not -MOST < least <= highest < MOST:
            values = _finite(values, 0.0 if weigher.lowest is None else weigher.lowest)
            least, highest = float(values.min()), float(values.max())
        lowest = least if weigher.lowest is None else weigher.lowest
        if least == highest or highest <= lowest:
            continue
        highest = max(highest, lowest + weigher.least_span)
        scales.append(Scale(weigher, lowest, highest, values, clamps=least < lowest))
    return tuple(scales)


def worth(scales: Sequence[Scale], view: View, count: int, near: float) -> Floats:
    """Return the score of every host, rounded to steps of `near`; operations without effect are skipped."""
    score, counts = np.zeros(count), np.empty(count)
    for scale in scales:
        values, lowest = scale.values, scale.lowest
        if scale.clamps:
            values = np.maximum(values, lowest)
        if lowest:
            values = values - lowest
        np.divide(values, scale.highest - lowest, out=counts)
        multiplier = view.override(scale.key, scale.weigher.multiplier)
        if np.ndim(multiplier) or multiplier != 1.0:
            counts *= multiplier
        score += counts
    return np.rint(score / near) if near else score


def points(scales: Scales, values: Sequence[float], multipliers: Iterable[float]) -> list[float]:
    """Return the weighted contribution of each value of one host, as `worth` computes it for all hosts."""
    return [
        (0.0 if scale.clamped and value < scale.lowest else value - scale.lowest)
        / (scale.highest - scale.lowest)
        * multiplier
        for scale, value, multiplier in zip(scales, values, multipliers, strict=True)
    ]


def score_of_host(
    scales: Scales, values: Sequence[float], multipliers: Sequence[float], near: float
) -> float:
    """Return the score of one host, present or recorded."""
    score = 0.0
    for counts in points(scales, values, multipliers):
        score += counts
    return float(round(score / near)) if near else score


def scores(scales: Scales, host: RecordedHost) -> dict[str, float]:
    """Return the score of each weigher for one host, and their sum, for a decision."""
    otherwise = host.multipliers
    multipliers = [scale.multiplier for scale in scales]
    if otherwise:
        multipliers = [otherwise.get(scale.weigher, scale.multiplier) for scale in scales]
    told: dict[str, float] = {}
    total = 0.0
    for scale, counts in zip(scales, points(scales, host.values, multipliers), strict=True):
        told[scale.weigher] = round(counts, 6)
        total += counts
    told["total"] = round(total, 6)
    return told


def _finite(values: Floats, unknown: float) -> Floats:
    return np.nan_to_num(values, nan=unknown, posinf=MOST, neginf=-MOST)


class Weights:
    """The scores of all hosts of an evaluation. Hosts with equal values share one computation."""

    def __init__(
        self, alternative: Alternative, view: AllHosts, found: FoundHosts, policy: ChoicePolicy, count: int
    ) -> None:
        self._wish = alternative
        self._found = found
        self._near = policy.near
        self._scales = scales = scales_of(policy.weighers, view, alternative, count)
        self.worths: Floats = worth(scales, view, count, policy.near)
        self.recorded = tuple([scale.recorded() for scale in scales])
        # whether aggregates override multipliers
        self.overriding = any(view.now.limits(scale.key) for scale in scales)
        self._multipliers = [scale.weigher.multiplier for scale in scales]
        self._reads = [scale.weigher.value for scale in scales]
        self._at_first = [scale.values for scale in scales]
        self._one_more: float | None = None
        self._worth_of: dict[Values, float] = {}
        self._scores_of: dict[Values, dict[str, float]] = {}

    def at_first(self, index: int) -> Values:
        """Return the weighers' values of a host that were read at the beginning of the evaluation."""
        return tuple([values.item(index) for values in self._at_first])

    def read(self, facts: HostFacts) -> Values:
        view, alternative = OneHost(facts), self._wish
        values = tuple([float(value(view, alternative)) for value in self._reads])
        if sum(map(abs, values)) < MOST:  # then all of them are finite and of usual size
            return values
        return tuple([scale.read(view, alternative) for scale in self._scales])

    def worth(self, facts: HostFacts, values: Values) -> float:
        if self.overriding:
            view = OneHost(facts)
            said = [view.override(scale.key, scale.weigher.multiplier) for scale in self._scales]
            return score_of_host(self.recorded, values, said, self._near)
        known = self._worth_of.get(values)
        if known is None:
            known = score_of_host(self.recorded, values, self._multipliers, self._near)
            self._worth_of[values] = known
        return known

    def one_more(self, index: int) -> float:
        """Return how much less a host weighs after one more instance, computed for the first host."""
        if self._one_more is None:
            now = self._found.facts(index)
            then = with_more(now, self._wish.asked, 1)
            self._one_more = self.worth(now, self.read(now)) - self.worth(then, self.read(then))
        return self._one_more

    def overridden(self, facts: HostFacts) -> dict[str, float]:
        """Return the multipliers of weighers that the host's aggregates override."""
        view = OneHost(facts)
        said = [(scale.weigher, view.override(scale.key, scale.weigher.multiplier)) for scale in self._scales]
        return {weigher.name: multiplier for weigher, multiplier in said if multiplier != weigher.multiplier}

    def scores(self, host: RecordedHost) -> dict[str, float]:
        """Return the scores of a host and their sum. The arrays are shared: do not write to them."""
        if host.multipliers:
            return scores(self.recorded, host)
        known = self._scores_of.get(host.values)
        if known is None:
            known = self._scores_of[host.values] = scores(self.recorded, host)
        return known


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of replaying a recorded decision: the chosen host, and the order of the hosts."""

    host: RecordedHost | None  # None: the record has no permitted host
    order: tuple[RecordedHost, ...] = ()  # hosts that no filter rejects, best first, before a random draw


def replay(build: str, record: Record) -> Replayed:
    """Return the host that a build gets according to the recorded values of each host."""
    order = sorted((host for host in record.hosts if not host.refused), key=lambda host: place(host, record))
    best = list(order)
    if best:
        best.insert(0, best.pop(drawn(record.seed, build, min(record.subset, len(best)))))
    left = (host for host in best if host.root not in record.turned_down)
    return Replayed(next(left, None), tuple(order))


def place(host: RecordedHost, record: Record) -> Place:
    """Return the position of a host in the order of an evaluation, as core/ranking.py computes it."""
    multipliers = [host.multipliers.get(scale.weigher, scale.multiplier) for scale in record.scales]
    worth = score_of_host(record.scales, host.values, multipliers, record.near)
    return host.outside + host.unknown, -worth, host.chosen, tie(record.seed, host.root)


class ChoiceRecorder:
    def __init__(
        self, flavor: int, seed: str, policy: ChoicePolicy, weights: Weights, found: FoundHosts
    ) -> None:
        self.values: dict[int, Values] = {}  # values of hosts that moved
        self.hosts: dict[int, RecordedHost] = {}  # accepted hosts
        self._flavor = flavor
        self._seed = seed
        self._policy = policy
        self._weights = weights
        self._found = found
        self._passed_over: list[Entry] = []  # the best rejected hosts

    def pass_over(self, entry: Entry) -> None:
        """Record that a host which would have been better was rejected."""
        if entry[2] == 0 and len(self._passed_over) < RECORDED_REFUSED:
            self._passed_over.append(entry)

    def record(self, best: Sequence[Entry], avoided: Sequence[Entry], refused: dict[int, Refusal]) -> Record:
        """Return the record of a choice: the evaluated hosts, best first, with the values of weighers."""
        if avoided or self._passed_over or self._policy.subset > 1:
            looked_at = self._with_refused(best, avoided, refused)
            hosts = [self._recorded(entry, why) for entry, why in looked_at]
        else:
            hosts = [self.hosts.get(entry[-1]) or self._recorded(entry) for entry in best]
        return Record(
            flavor=self._flavor,
            seed=self._seed,
            near=self._policy.near,
            subset=self._policy.subset,
            scales=self._weights.recorded,
            hosts=tuple(hosts),
        )

    def _with_refused(
        self, best: Sequence[Entry], avoided: Sequence[Entry], refused: dict[int, Refusal]
    ) -> list[tuple[Entry, str]]:
        looked_at = [(entry, "") for entry in best]
        looked_at += [(entry, AVOIDED) for entry in avoided[:RECORDED_REFUSED]]
        for entry in self._passed_over:
            rule, why = refused.get(entry[-1], (None, ""))
            if rule is not None:
                looked_at.append((entry, f"{rule.name}: {why}"))
        return sorted(looked_at)

    def _recorded(self, entry: Entry, refused: str = "") -> RecordedHost:
        index, weights = entry[-1], self._weights
        known = None if refused else self.hosts.get(index)
        if known is None:
            host = self._found.host(index)
            known = RecordedHost(
                host.uuid,
                host.host,
                self.values.get(index) or weights.at_first(index),
                refused,
                weights.overridden(self._found.facts(index)) if weights.overriding else {},
                entry[2],
                entry[0] > OUR_HOSTS,
                entry[0] == UNKNOWN_HOSTS,
            )
            if not refused:
                self.hosts[index] = known
        return known
