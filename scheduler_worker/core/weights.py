"""Scores of hosts in one ranking: all at the beginning, then one host at a time, on the same scales."""

from bus.candidates import Floats
from bus.decisions import RecordedHost
from scheduler_worker.core.alternative import Alternative
from scheduler_worker.core.facts import HostFacts
from scheduler_worker.core.found_hosts import FoundHosts
from scheduler_worker.core.one_host import with_more
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.scale import MOST, scales_of, score_of_host, scores, worth
from scheduler_worker.core.view import AllHosts, HostsNow, OneHost

Values = tuple[float, ...]  # values of one host for the weighers that differ between hosts


class Weights:
    """Many hosts are alike: what the same values count is reckoned once."""

    def __init__(
        self, alternative: Alternative, view: AllHosts, now: HostsNow, policy: ChoicePolicy, count: int
    ) -> None:
        self._wish = alternative
        self._near = policy.near
        self._scales = scales = scales_of(policy.weighers, view, alternative, count)
        self.worths: Floats = worth(scales, view, count, policy.near)
        self.recorded = tuple([scale.recorded() for scale in scales])
        # whether aggregates override multipliers
        self.overriding = any(now.limits(scale.key) for scale in scales)
        self._multipliers = [scale.weigher.multiplier for scale in scales]
        self._reads = [scale.weigher.value for scale in scales]
        self._at_first = [scale.values for scale in scales]
        self._one_more: float | None = None
        self._worth_of: dict[Values, float] = {}
        self._scores_of: dict[Values, dict[str, float]] = {}

    def at_first(self, index: int) -> Values:
        """Return the values of the host that were read at the beginning."""
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

    def one_more(self, found: FoundHosts, index: int) -> float:
        """Return how much less a host weighs after one more instance of the request.

        That is about equal for all hosts, so it is computed for the first one.
        """
        if self._one_more is None:
            now = found.facts(index)
            then = with_more(now, self._wish.asked, 1)
            self._one_more = self.worth(now, self.read(now)) - self.worth(then, self.read(then))
        return self._one_more

    def overridden(self, facts: HostFacts) -> dict[str, float]:
        """Return the multipliers that the host's aggregates override."""
        view = OneHost(facts)
        said = [(scale.weigher, view.override(scale.key, scale.weigher.multiplier)) for scale in self._scales]
        return {weigher.name: multiplier for weigher, multiplier in said if multiplier != weigher.multiplier}

    def scores(self, host: RecordedHost) -> dict[str, float]:
        """Return the weights of the host, and their sum. Shared: do not write to it."""
        if host.multipliers:
            return scores(self.recorded, host)
        known = self._scores_of.get(host.values)
        if known is None:
            known = self._scores_of[host.values] = scores(self.recorded, host)
        return known
