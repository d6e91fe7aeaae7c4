"""Hosts that fit a request: the filters that apply to it, their cached verdicts and allocation candidates.

A verdict is valid until the host, or a resource that it shares, changes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec import structs

from bus.candidates import Bools, CandidateSearch, CandidateSource, Floats, SenselessQuery
from bus.host_health import DISABLED
from bus.queries import Candidate
from bus.vocabulary import Resources
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.rejections import FoundHosts, Refusal
from scheduler_worker.core.rule import Alternative, HostFacts, Rule
from scheduler_worker.core.rules.neighbours import AFFINITY
from scheduler_worker.core.view import AllHosts, HostsNow
from scheduler_worker.core.waiting_queue import HostsFound

if TYPE_CHECKING:
    from scheduler_worker.core.rule import Alternative, Rule

IMAGE = "image"  # the part of a request that the relevant filters read
WAYS_OF_THE_BEST = 16  # of a tree, how many are named in one claim
ALL_WAYS = 2048  # allocation candidates examined if some providers are to be avoided


def fitting(
    alternative: Alternative,
    search: CandidateSearch,
    now: HostsNow,
    served: Bools,
    policy: ChoicePolicy,
    enough: int,
) -> HostsFound:
    """Return the hosts of a search with free capacity for `enough` instances that all filters accept.
    `served` are the hosts with an agent.
    """
    positions = search.positions
    there = served[positions]
    admitted, lasting = there.copy(), there.copy()
    lazy: list[Rule] = []
    if positions.size:
        view = AllHosts(search, now)
        for rule in rules_for(alternative, policy):
            if rule.admits is None:
                lazy.append(rule)
                continue
            lets_pass = rule.admits(view, alternative)
            admitted &= lets_pass
            if not rule.passes:
                lasting &= lets_pass
    passing = bool((lasting & ~admitted).any())
    refused = [search.host(int(at)).uuid for at in positions[there & ~admitted]]
    asked = asked_of_a_tree(alternative)
    fits: dict[str, int] = {}
    room = 0
    for at in positions[admitted].tolist():
        if room >= enough:
            return HostsFound(fits, refused, passing, more=True)
        facts = now.facts(search, at)
        refusal = next((rule for rule in lazy if rule.refuses(facts, alternative) is not None), None)
        if refusal is not None:
            refused.append(facts.root)
            passing = passing or refusal.passes
        elif search.ways(at, 1):
            several = capacities(asked, facts.free)
            fits[facts.root] = several
            room += several
    return HostsFound(fits, refused, passing)


def admitted_for_good(
    alternative: Alternative, search: CandidateSearch, position: int, now: HostsNow, policy: ChoicePolicy
) -> bool:
    """Return whether no filter rejects a host for a reason that lasts longer than seconds."""
    facts = now.facts(search, position)
    return all(
        rule.passes or rule.refuses(facts, alternative) is None for rule in rules_for(alternative, policy)
    )


def rules_for(alternative: Alternative, policy: ChoicePolicy) -> list[Rule]:
    """Return the filters that apply to a request. A forced host skips filters, unless it is down."""
    if alternative.request.forced_host:
        return [rule for rule in policy.rules if rule.name == "up"]
    return [rule for rule in policy.rules if rule.concerns is None or rule.concerns(alternative)]


def asked_of_a_tree(alternative: Alternative) -> Resources:
    asked: Resources = {}
    for group in alternative.question.groups:
        for name, amount in group.resources.items():
            asked[name] = asked.get(name, 0) + amount
    return asked


def capacities(asked: Mapping[str, int], free: Mapping[str, int]) -> int:
    """Return the approximate number of instances that fit into the free amounts, without shared resources."""
    several = [free[name] // amount for name, amount in asked.items() if name in free]
    return max(min(several, default=1), 1)


def distances(asked: Mapping[str, int], search: CandidateSearch) -> Floats:
    """Return the sum of the shares of the request that each host lacks for one instance."""
    far: Floats = np.zeros(search.positions.size)
    for name, amount in asked.items():
        far += np.maximum(amount - search.free(name), 0.0) / amount
    return far


def unfit(
    alternative: Alternative, root: str, source: CandidateSource, now: HostsNow, policy: ChoicePolicy
) -> str:
    """Return why a host, if it were empty, would not fit the new image of a rebuild; "" if it fits."""
    question = msgspec.structs.replace(
        alternative.question,
        roots=(root,),
        not_roots=(),
        not_cells=(),
        cell="",
        zone="",
        root_forbidden=tuple(one for one in alternative.question.root_forbidden if one != DISABLED),
        root_member_of=(),
        root_not_member_of=(),
    )
    try:
        search = source.search(question, empty=True)
    except SenselessQuery as problem:
        return str(problem)
    position = source.position(root)
    if position is None or position not in search.positions:
        return next(
            (f"it lacks {removal.constraint}" for removal in search.removals() if not removal.left),
            "it has gone",
        )
    facts = now.facts(search, position)
    for rule in rules_for(alternative, policy):
        if IMAGE in rule.reads and (refusal := rule.refuses(facts, alternative)) is not None:
            return refusal
    return ""


def all_of_them(
    alternative: "Alternative",
    rules: Sequence["Rule"],
    keeps: "Rule",
    source: CandidateSource,
    facts: HostFacts,
    ways: Callable[[], Sequence[Candidate]],
) -> Refusal | None:
    """Return why a host that fits the first instance of a request would not fit the last one."""
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
    """Return how many more instances fit on a host after the first: computed for one provider, else tried."""
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


class HostCache:
    """The filters' verdicts and the allocation candidates of hosts, by the index of the host."""

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
        """Return whether every filter accepts a host; evaluated once, until the host changes."""
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
        """Return whether a host has capacity for some instances of an affinity group, but not for all."""
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
        """Drop the verdict and the candidates of a host that has changed."""
        self.lone_ways.pop(index, None)
        self._tree_ways.pop(index, None)
        self.refused.pop(index, None)
        self.admitted.discard(index)

    def forget_trees(self) -> None:
        """Drop the candidates of hosts that share resources with a changed host."""
        self._tree_ways.clear()

    # Allocation candidates

    def way(self, index: int, avoid: Collection[str] = ()) -> Candidate | None:
        """Return the first allocation candidate of a host, or None if a filter rejects the host."""
        if index not in self.admitted and not self.admits(index):
            return None
        ways = self.lone_ways.get(index)
        if ways is None or avoid:
            ways = self.ways(index, 1, avoid)
        return ways[0] if ways else None

    def ways(self, index: int, most: int, avoid: Collection[str] = ()) -> tuple[Candidate, ...]:
        """Return the allocation candidates of a host that fit now and use no provider to avoid."""
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
        """Search the allocation candidates of a host again, and return them."""
        return tuple(self._search.ways(self._positions.item(index), most))
