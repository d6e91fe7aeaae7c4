"""The cache of a ranking: which hosts filters accept, and their allocation candidates.

Both are valid until the host, or a resource that it shares, changes. A host without capacity for all
instances that must be on one host is rejected.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from bus.candidates import CandidateSearch, CandidateSource
from bus.queries import Candidate
from scheduler_worker.core.rejections import FoundHosts, Refusal
from scheduler_worker.core.rule import Alternative, HostFacts, Rule
from scheduler_worker.core.rules.neighbours import AFFINITY

if TYPE_CHECKING:
    from scheduler_worker.core.rule import Alternative, Rule


def all_of_them(
    alternative: "Alternative",
    rules: Sequence["Rule"],
    keeps: "Rule",
    source: CandidateSource,
    facts: HostFacts,
    ways: Callable[[], Sequence[Candidate]],
) -> Refusal | None:
    """Return why a host that fits the first instance would not fit the last one."""
    if alternative.together is None or alternative.together.several < 2:
        return None
    others = alternative.together.several - 1
    then, last = (
        with_more(facts, alternative.asked, others),
        replace(alternative, members={facts.root: others}),
    )
    for rule in rules:
        why = rule.refuses(then, last)
        if why is not None:
            return rule, f"{why} (with {others} more of the request there)"
    room = 1 + _room(others, source, ways)
    return (keeps, f"room for {room} of {others + 1} that are to be together") if room <= others else None


def with_more(facts: HostFacts, asked: Mapping[str, int], several: int) -> HostFacts:
    """Return the facts of the host after this number of further builds on it."""
    free = {name: amount - several * asked.get(name, 0) for name, amount in facts.free.items()}
    return structs.replace(facts, free=free, building=facts.building + several)


def _room(others: int, source: CandidateSource, ways: Callable[[], Sequence[Candidate]]) -> int:
    """Return how many more instances fit after the first one: computed for one provider, else tried."""
    found = ways()
    if not found:
        return -1
    if not found[0].free_by_provider:
        (asked,) = found[0].allocations.values()
        return min(others, *(found[0].free[name] // amount - 1 for name, amount in asked.items()))
    tried: list[Candidate] = []
    try:
        while found and len(tried) < others:
            source.reserve(found[0].allocations)
            tried.append(found[0])
            found = ways()
    finally:
        for way in tried:
            source.withdraw(way.allocations)
    return len(tried) if found else len(tried) - 1


WAYS_OF_THE_BEST = 16  # of a tree, how many are named in one claim
ALL_WAYS = 2048  # allocation candidates examined if some providers are to be avoided


class HostCache:
    """Hosts are known by their index into the arrays of the search."""

    def __init__(
        self,
        alternative: Alternative,
        search: CandidateSearch,
        source: CandidateSource,
        found: FoundHosts,
        rules: Sequence[Rule],
    ) -> None:
        self.refused: dict[int, Refusal] = {}  # by a filter that evaluates single hosts
        self.chosen: dict[int, int] = {}  # how often each host was chosen
        self.lone_ways: dict[int, tuple[Candidate, ...]] = {}  # of hosts with one candidate
        self.lazy = [rule for rule in rules if rule.admits is None]
        keeps = (rule for rule in rules if rule.name == AFFINITY and alternative.together is not None)
        self.keeps_together = next(keeps, None)
        self._wish = alternative
        self._search = search
        self._source = source
        self._found = found
        self._rules = rules
        self._positions = search.positions
        self.admitted: set[int] = set()  # hosts that every filter accepts, as far as they were evaluated
        self._tree_ways: dict[int, tuple[Candidate, ...]] = {}

    def admits(self, index: int) -> bool:
        """Return whether every filter accepts the host; evaluated once, until the host changes."""
        if index in self.refused:
            return False
        if index in self.admitted:
            return True
        # Filters that evaluate arrays must be applied again to chosen hosts.
        rules = self._rules if index in self.chosen else self.lazy
        if rules:
            facts = self._found.facts(index)
            for rule in rules:
                why = rule.refuses(facts, self._wish)
                if why is not None:
                    self.refused[index] = rule, why
                    return False
        self.admitted.add(index)
        return True

    def parts(self, index: int) -> bool:
        """Return whether the host has capacity for some instances of an affinity group, but not for all."""
        keeps = self.keeps_together
        if keeps is None or not self.ways(index, 1):
            return False
        facts = self._found.facts(index)
        refusal = all_of_them(
            self._wish, self._rules, keeps, self._source, facts, lambda: self.look(index, 1)
        )
        if refusal is not None:
            self.refused[index] = refusal
        return refusal is not None

    def forget(self, index: int) -> None:
        """Forget everything about a host that has changed."""
        self.lone_ways.pop(index, None)
        self._tree_ways.pop(index, None)
        self.refused.pop(index, None)
        self.admitted.discard(index)

    def forget_trees(self) -> None:
        """Forget the candidates of trees, which may share resources with a changed host."""
        self._tree_ways.clear()

    # Allocation candidates

    def way(self, index: int, avoid: Collection[str] = ()) -> Candidate | None:
        """Return the first allocation candidate of the host, or None if a filter rejects the host."""
        if index not in self.admitted and not self.admits(index):
            return None
        ways = self.lone_ways.get(index)
        if ways is None or avoid:
            ways = self.ways(index, 1, avoid)
        return ways[0] if ways else None

    def ways(self, index: int, most: int, avoid: Collection[str] = ()) -> tuple[Candidate, ...]:
        """Return the allocation candidates of the host that fit now, without providers to avoid."""
        ways = self.lone_ways.get(index)
        if ways is not None and not avoid:
            return ways
        ways = ways or self._tree_ways.get(index)
        if ways is None:
            ways = self.look(index, WAYS_OF_THE_BEST)
            lone = len(ways) == 1 and len(ways[0].allocations) == 1 and ways[0].root in ways[0].allocations
            if ways:
                (self.lone_ways if lone else self._tree_ways)[index] = ways
        if avoid and any(not way.allocations.keys().isdisjoint(avoid) for way in ways):
            if len(ways) == WAYS_OF_THE_BEST:
                ways = self.look(index, ALL_WAYS)
            ways = tuple([way for way in ways if way.allocations.keys().isdisjoint(avoid)])
        return ways[:most]

    def look(self, index: int, most: int) -> tuple[Candidate, ...]:
        """Return the present candidates, whatever was found before."""
        return tuple(self._search.ways(self._positions.item(index), most))
