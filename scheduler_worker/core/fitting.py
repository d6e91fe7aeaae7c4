"""Finds the hosts that fit a request, and caches filter results and allocation candidates of each host."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from operator import and_

import numpy as np
from msgspec import structs

from bus.candidates import CandidateSearch, Floats, FreeProvider, Ints, PlacedHost
from bus.queries import Candidate
from scheduler_worker.core.host_map import AllHosts, HostMap, HostsNow
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.rule import (
    Alternative,
    ExpectedValues,
    HostFacts,
    Number,
    OneHost,
    Rule,
    RuleError,
    View,
    WayValues,
    Weigher,
    WeightedCandidates,
    guarded,
)

WAYS_OF_THE_BEST = 16  # most allocation candidates of one host in a claim
MOST_WEIGHED = 128  # most candidates of one host that are weighed
ALL_WAYS = 2048  # allocation candidates examined if some providers are to be avoided
MOST = 1e300  # values of weighers are limited to ± this
Mask = tuple[Rule, Number]  # a filter, and the hosts that it accepts
Refusal = tuple[Rule, str]

Entry = tuple[int, float, int, int, int]  # tier, −score, number of choices, hash, index; smallest is best


def masks_of(rules: Sequence[Rule], view: View, alternative: Alternative, size: int) -> Iterator[Mask]:
    """Yield each filter that evaluates all `size` hosts as arrays, with its mask (True: host accepted).
    Filters that accept all hosts are skipped.
    """
    for rule in rules:
        if rule.admits is not None:
            mask = rule.admits(view, alternative)
            if np.ndim(mask) and len(mask) != size:
                raise RuleError(
                    f"the filter {rule.name}", ValueError(f"{len(mask)} results for {size} hosts")
                )
            if np.ndim(mask) or not mask:
                yield rule, mask


class WeighedWays:
    """Converts a weigher's values of allocation candidates to counts: 1 for the best one, less for lower
    ones, as `Weigher.of_ways` says.
    """

    def __init__(self, weigher: Weigher, values: WayValues, among: Ints, hosts: int) -> None:
        given = np.asarray(values.highest, np.float64)
        if given.ndim and given.shape != (hosts,):
            raise RuleError(
                f"the weigher {weigher.name}", ValueError(f"{given.size} numbers for {hosts} hosts")
            )
        highest = given if given.ndim else np.full(hosts, given)
        if not -MOST < given.min(initial=0.0) <= given.max(initial=0.0) < MOST:
            highest = np.nan_to_num(highest, nan=-MOST, posinf=MOST, neginf=-MOST)
        self.weigher = weigher
        passing = highest if len(among) == hosts else highest[among]
        self._best = float(passing.max(initial=-MOST))
        self._values_of = guarded(f"the weigher {weigher.name}", values.of)
        self._expected = values if isinstance(values, ExpectedValues) else ExpectedValues()
        lower = self._best - highest
        # what the best candidate of each host counts, before any host is chosen: an estimate
        self.estimates: Floats = 1.0 - lower / (weigher.half_at + np.abs(lower))

    def of(self, tree: Sequence[FreeProvider], ways: Sequence[Candidate]) -> list[float]:
        """Return what the candidates of a host count, as of now."""
        return [self._counts(value) for value in self._values_of(tree, ways)]

    def expect(self, indices: list[int]) -> None:
        """Name the hosts that will be chosen, the next one first."""
        self._expected.expect(indices)

    def of_expected(self, index: int, free: Mapping[str, int]) -> float | None:
        """Return what the only candidate of a host counts, as `ExpectedValues.of_expected` says."""
        value = self._expected.of_expected(index, free)
        return None if value is None else self._counts(value)

    def _counts(self, value: float) -> float:
        """Return how much a value counts: 1 for the best, less for lower ones, 0 or 2 for infinite ones."""
        if not -MOST < value < MOST:
            return 2.0 if value > 0 else 0.0
        lower = self._best - value
        return 1.0 - lower / (self.weigher.half_at + abs(lower))


def capacities(asked: Mapping[str, int], free: Mapping[str, int]) -> int:
    """Estimate how many instances of a flavor fit on a host that fits one; resources of pools are ignored."""
    several = [free[name] // amount for name, amount in asked.items() if name in free]
    return max(min(several, default=1), 1)


def with_more(facts: HostFacts, asked: Mapping[str, int], several: int) -> HostFacts:
    """Return a host's data for filters as if `several` further instances were already placed on it."""
    free = {name: amount - several * asked.get(name, 0) for name, amount in facts.free.items()}
    return structs.replace(facts, free=free, building=facts.building + several)


class FoundHosts:
    """The hosts that a search found for a flavor, identified by their indices in the search's arrays.

    The data, filter results and candidates of a host are cached until the host, or a pool that it uses,
    changes.
    """

    def __init__(
        self,
        alternative: Alternative,
        search: CandidateSearch,
        now: HostsNow,
        hosts: HostMap,
        policy: ChoicePolicy,
    ) -> None:
        self.alternative = alternative
        self.search = search
        self.source = now.source
        self.hosts = hosts
        self.policy = policy
        self.positions = search.positions
        self.view = AllHosts(search, now)
        self.rules = policy.rules_for(alternative)
        self.lazy = [rule for rule in self.rules if rule.admits is None]
        with_agent = hosts.has_agent, hosts.served.take(search.positions)
        self.masks: list[Mask] = [
            with_agent,
            *masks_of(self.rules, self.view, alternative, self.positions.size),
        ]
        if (allowed := alternative.allowed) is not None:
            self.masks.append((allowed.rule, allowed.mask.take(search.positions)))
        # the filter that demands that the host fits several instances; None: no such demand
        self.keeps_together = (
            None
            if (together := alternative.together) is None
            else next((rule for rule in self.rules if rule.name == together.rule), None)
        )
        self.refused: dict[int, Refusal] = {}  # index of a host → the filter that rejected it, and why
        self.full: dict[int, Entry] = {}  # index of a host without capacity → its last place in the ranking
        self.chosen: dict[int, int] = {}  # index of a host → how often it was chosen
        self.admitted: set[int] = set()  # indices of hosts that all filters accepted
        self.lone_ways: dict[int, tuple[Candidate, ...]] = {}  # index of a host → its only candidate
        self._tree_ways: dict[int, tuple[Candidate, ...]] = {}
        self._values_of_best: dict[int, tuple[float, ...]] = {}  # index of a host → by `way_values`
        self._facts: dict[int, HostFacts] = {}
        # root → allocations of which one must cover the host's candidates
        self._within = alternative.restriction.within if alternative.restriction is not None else {}

    @cached_property
    def way_values(self) -> list[WeighedWays]:
        """Return the weighers of candidates, with what they found."""
        hosts = self.positions.size
        return [
            WeighedWays(weigher, weigher.of_ways(self.view, self.alternative), self.passing, hosts)
            for weigher in self.policy.of_ways
            if weigher.of_ways is not None
            and hosts
            and (weigher.multiplier or self.view.now.limits(weigher.key))  # an aggregate's multiplier
        ]

    @cached_property
    def passing(self) -> Ints:
        """Return the indices of hosts that all filters on arrays accept. Filters for single hosts may still
        reject some of them.
        """
        return np.flatnonzero(reduce(and_, [mask for _, mask in self.masks]))

    def host(self, index: int) -> PlacedHost:
        """Return the found host at this index."""
        return self.search.host(self.positions.item(index))

    def facts(self, index: int) -> HostFacts:
        """Return the data of a host that filters and weighers read, cached until `read_again` is called."""
        facts = self._facts.get(index)
        return self.read_again(index) if facts is None else facts

    def read_again(self, index: int) -> HostFacts:
        """Read the data of a host again, because its free capacity changed."""
        facts = self._facts[index] = self.view.now.facts(self.search, self.positions.item(index))
        return facts

    def index(self, root: str) -> int:
        """Return the index of a found host by its root."""
        position = self.source.position(root)
        return int(np.searchsorted(self.positions, -1 if position is None else position))

    def admits(self, index: int) -> bool:
        """Return whether all filters accept a host. The result is cached until the host changes."""
        if index in self.refused:
            return False
        if index in self.admitted:
            return True
        # The filters on arrays saw a chosen host before it was chosen, so they are applied to it again.
        rules = self.rules if index in self.chosen else self.lazy
        if rules:
            facts = self.facts(index)
            for rule in rules:
                why = rule.refuses(facts, self.alternative)
                if why is not None:
                    self.refused[index] = rule, why
                    return False
        self.admitted.add(index)
        return True

    def fits_too_few(self, index: int) -> bool:
        """Return True if a host fits one instance, but not all instances that need to be on one host."""
        keeps_together, together = self.keeps_together, self.alternative.together
        if keeps_together is None or together is None or not self.ways(index, 1):
            return False
        more = together.several - 1
        facts = with_more(self.facts(index), self.alternative.asked, more)
        last = together.placed(self.alternative, facts.root, more)
        for rule in self.rules:
            why = rule.refuses(facts, last)
            if why is not None:
                self.refused[index] = rule, f"{why} (with {more} more of the request there)"
                return True
        capacity = 1 + self._count_after_first(index, more)
        if capacity <= more:
            self.refused[index] = keeps_together, f"room for {capacity} of {more + 1} that are to be together"
        return capacity <= more

    def _count_after_first(self, index: int, more: int) -> int:
        """Return how many instances fit after a first one, at most `more`; -1 if the first does not fit."""
        found = self.find_ways(index, 1)
        if not found:
            return -1
        if not found[0].free_by_provider:
            (asked,) = found[0].allocations.values()
            return min(more, *(found[0].free[name] // amount - 1 for name, amount in asked.items()))
        count = 0
        with self.source.packing.trying() as trial:
            while found and count < more:
                trial.claim(found[0].allocations)
                count += 1
                found = self.find_ways(index, 1)
        return count if found else count - 1

    def forget(self, index: int) -> None:
        """Drop the cached filter result and allocation candidates of a host, because the host has changed."""
        self.lone_ways.pop(index, None)
        self._tree_ways.pop(index, None)
        self.refused.pop(index, None)
        self.admitted.discard(index)

    def forget_trees(self) -> None:
        """Drop cached candidates that use several providers, because shared resources may have changed."""
        self._tree_ways.clear()

    def passing_after(self, position: int) -> Sequence[int]:
        """Return those of the `passing` hosts that come after a position in placement's index."""
        first = np.searchsorted(self.positions[self.passing], position, side="right")
        indices: list[int] = self.passing[first:].tolist()
        return indices

    def any_way(self, index: int) -> Candidate | None:
        """Return an allocation candidate of a host, not always the best; None if no candidate fits or a
        filter rejects the host.
        """
        ways = self.find_ways(index, 1) if self.admits(index) else ()
        return ways[0] if ways else None

    def way(self, index: int, avoid: Collection[str] = ()) -> Candidate | None:
        """Return a host's best allocation candidate that uses no provider in `avoid`; None if no candidate
        fits or a filter rejects the host.
        """
        if index not in self.admitted and not self.admits(index):
            return None
        ways = self.lone_ways.get(index)
        if ways is None or avoid:
            ways = self.ways(index, 1, avoid)
        return ways[0] if ways else None

    def ways(self, index: int, most: int, avoid: Collection[str] = ()) -> tuple[Candidate, ...]:
        """Return at most `most` of a host's allocation candidates that fit now and use no provider in
        `avoid`, best first.
        """
        ways = self.lone_ways.get(index)
        if ways is not None and not avoid:
            return ways
        ways = ways or self._tree_ways.get(index)
        if ways is None:
            ways = self._best_first(index, self.find_ways(index, self._most_ways))
            lone = len(ways) == 1 and len(ways[0].allocations) == 1 and ways[0].root in ways[0].allocations
            if ways:
                (self.lone_ways if lone else self._tree_ways)[index] = ways
        if avoid and any(not way.allocations.keys().isdisjoint(avoid) for way in ways):
            if len(ways) == WAYS_OF_THE_BEST or self.way_values:  # there may be more
                ways = self._best_first(index, self.find_ways(index, ALL_WAYS))
            ways = tuple([way for way in ways if way.allocations.keys().isdisjoint(avoid)])
        return ways[:most]

    def find_ways(self, index: int, most: int) -> tuple[Candidate, ...]:
        """Return at most `most` allocation candidates of a host from a new search, not from the cache. A
        single one is not compared with others, so weighers of candidates are not computed for it.
        """
        within = self._within.get(self.host(index).uuid, ()) if self._within else ()
        weighed = 1 < most <= MOST_WEIGHED and bool(self.way_values)
        return tuple(self.search.ways(self.positions.item(index), most, within, distinct=weighed))

    @property
    def _most_ways(self) -> int:
        """Return how many candidates of one host are read: more of them if weighers compare them."""
        return MOST_WEIGHED if self.way_values else WAYS_OF_THE_BEST

    def _best_first(self, index: int, ways: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Return the candidates of a host sorted by their scores, the best first."""
        self._values_of_best.pop(index, None)
        if len(ways) < 2:
            return ways
        if not self.way_values:
            return best_first(ways, self.policy.of_candidates)
        values = self._values_of(index, ways)
        scores, host = [0.0] * len(ways), OneHost(self.facts(index))
        for weighed, of_weigher in zip(self.way_values, values, strict=True):
            multiplier = max(host.override(weighed.weigher.key, weighed.weigher.multiplier), 0.0)
            for number, value in enumerate(of_weigher):
                scores[number] -= multiplier * value
        for multiplier, value_of in self.policy.of_candidates:
            for number, way in enumerate(ways):
                scores[number] -= multiplier * value_of(way)
        order = sorted(range(len(ways)), key=scores.__getitem__)
        self._values_of_best[index] = tuple([of_weigher[order[0]] for of_weigher in values])
        return tuple([ways[number] for number in order[:WAYS_OF_THE_BEST]])

    def _values_of(self, index: int, ways: Sequence[Candidate]) -> list[list[float]]:
        tree = self.search.tree(self.positions.item(index))
        return [weighed.of(tree, ways) for weighed in self.way_values]

    def values_of_best(self, index: int) -> tuple[float, ...]:
        """Return what a host's best candidate counts, in the order of `way_values`; 0 if none fits."""
        expected = None if self._within else self._expected_values(index)
        if expected is not None:
            return expected
        ways = self.ways(index, 1)
        if not ways:
            return (0.0,) * len(self.way_values)
        known = self._values_of_best.get(index)
        if known is None:
            values = self._values_of(index, ways)
            known = self._values_of_best[index] = tuple([of_weigher[0] for of_weigher in values])
        return known

    def _expected_values(self, index: int) -> tuple[float, ...] | None:
        """Return the values of a host's only candidate if all weighers have computed it before."""
        free, found = self.facts(index).free, list[float]()
        for weighed in self.way_values:
            value = weighed.of_expected(index, free)
            if value is None:
                return None
            found.append(value)
        fits = all(free.get(name, 0) >= amount for name, amount in self._asked.items())
        return tuple(found) if fits else (0.0,) * len(found)

    @cached_property
    def _asked(self) -> Mapping[str, int]:
        return self.alternative.asked


def best_first(candidates: tuple[Candidate, ...], weighers: WeightedCandidates) -> tuple[Candidate, ...]:
    """Return the candidates of one host sorted by their scores, the best first; ties keep their sequence."""
    if len(candidates) < 2 or not weighers:
        return candidates
    scores = [0.0] * len(candidates)
    for multiplier, value in weighers:
        for number, candidate in enumerate(candidates):
            scores[number] -= multiplier * value(candidate)
    order = sorted(range(len(candidates)), key=scores.__getitem__)
    return tuple([candidates[number] for number in order])
