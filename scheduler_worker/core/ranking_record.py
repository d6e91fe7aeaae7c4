"""The record of a choice: the hosts that were compared, with their values, for later explanations."""

from collections.abc import Sequence

from bus.decisions import Record, RecordedHost
from scheduler_worker.core.found_hosts import FoundHosts
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.ranking_order import OUR_HOSTS, UNKNOWN_HOSTS, Entry
from scheduler_worker.core.rejections import Refusal
from scheduler_worker.core.weights import Values, Weights

RECORDED_REFUSED = 2  # rejected hosts in the record that would have been better
AVOIDED = "placement refused it a moment ago"


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
        """Record a rejected host that would have been better."""
        if entry[2] == 0 and len(self._passed_over) < RECORDED_REFUSED:
            self._passed_over.append(entry)

    def record(self, best: Sequence[Entry], avoided: Sequence[Entry], refused: dict[int, Refusal]) -> Record:
        """Return the record of the evaluated hosts, best first, with the values of each."""
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
