"""One evaluation of all hosts for equal requests, from which hosts are handed out best first.

A host that is handed out is reserved immediately, weighed again with its remaining capacity, and sorted in
again. So each choice is the best at its moment, on the scales of the beginning.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from bus.candidates import Bools, CandidateSearch, Floats, Ints, PlacedHost
from bus.decisions import Removal
from bus.queries import Candidate
from scheduler_worker.core.alternates import AlternatesOfCell, CapacityByHost
from scheduler_worker.core.choice import HasReservations, Pick
from scheduler_worker.core.fitting import WAYS_OF_THE_BEST, HostCache, rules_for
from scheduler_worker.core.host_map import HostMap
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.ranking_order import THEIR_HOSTS, Entry, HostOrder, tiers_of
from scheduler_worker.core.rejections import FoundHosts, Mask, Verdicts
from scheduler_worker.core.rule import Alternative, Rule
from scheduler_worker.core.scale import ChoiceRecorder, Weights
from scheduler_worker.core.shortage import Shortage, lacking_reserved, named_reserved
from scheduler_worker.core.view import AllHosts, HostsNow

WAYS_OF_THE_NEXT = 4  # allocation candidates of each host after the best one
NEAREST_BEYOND = 16  # near misses asked of placement: rules leave some out


class Ranking:
    """One evaluation of all hosts for equal requests. Hosts are known by their index into the arrays of the
    search; nothing may be awaited while it is used.
    """

    def __init__(
        self,
        alternative: Alternative,
        search: CandidateSearch,
        now: HostsNow,
        hosts: HostMap,
        policy: ChoicePolicy,
        promises: HasReservations,
        seed: str,
    ) -> None:
        self.alternative = alternative
        self._search = search
        self._source = now.source
        self._subset = policy.subset
        self._promises = promises
        self._positions = positions = search.positions
        self._found = FoundHosts(search, now, hosts)
        view, rules = AllHosts(search, now), rules_for(alternative, policy)
        missing = [
            f"preferred_traits: no host that fits has {trait}"
            for trait, weight in alternative.preferred.items()
            if weight > 0 and not np.any(view.has(trait))
        ]
        self._notes = (*alternative.notes, *missing)
        self.cache = cache = HostCache(alternative, search, now.source, self._found, rules)
        served = hosts.served.take(positions)
        admitted, masks = _admitted(alternative, view, rules, served)
        keeps = cache.keeps_together
        lazy = cache.lazy if keeps is None else [*cache.lazy, keeps]
        self._verdicts = Verdicts(alternative, served, masks, lazy, rules, self._found)
        self._weights = Weights(alternative, view, self._found, policy, len(positions))
        # Slices of schedulers do not apply to a request that names its hosts.
        tiers = tiers_of(positions, None if alternative.question.roots else hosts.ours, now.unknown)
        self._order = HostOrder(seed, hosts, positions, self._weights.worths, tiers, admitted)
        self._recorder = ChoiceRecorder(
            alternative.alternative_index, seed, policy, self._weights, self._found
        )
        self.capacities = CapacityByHost(alternative, search, now.source, hosts, self._order)
        self._full: dict[int, Entry] = {}  # hosts without capacity
        self._spares: dict[str, AlternatesOfCell] = {}
        self.turns = 0  # changes whenever a host is chosen or returned
        self._beforehand: tuple[Removal, ...] | None = None  # what placement's constraints removed
        self._counted: set[int] = set()  # so they are not removed once more by ours
        self._removals: tuple[tuple[int, int], tuple[Removal, ...]] | None = None

    # Handing out

    def take(
        self,
        several: int = 1,
        most: int = 64,
        avoid: Collection[str] = (),
        draw: Callable[[int], int] | None = None,
    ) -> Pick | None:
        """Choose the best host, count it as used, and add the next best hosts for the case that placement
        refuses it.

        Hosts that require a provider in `avoid` are chosen only if no other host fits.
        """
        subset, cache, order = self._subset, self.cache, self._order
        wanted = max(several, subset)
        best = [] if avoid or cache.keeps_together is not None else order.pop_left(wanted)
        avoided: list[Entry] = []
        while len(best) < wanted and (entry := self._next()) is not None:
            (avoided if avoid and not cache.ways(entry[-1], 1, avoid) else best).append(entry)
        late = bool(avoided and not best)
        if late:
            best, avoided = avoided, []
        if not best:
            return None
        if draw is not None and subset > 1 and len(best) > 1:
            best.insert(0, best.pop(draw(min(subset, len(best)))))
        winner = best[0][-1]
        choices: list[Candidate] = []
        shunned = () if late else avoid
        lone_ways: Mapping[int, tuple[Candidate, ...]] = {} if shunned else cache.lone_ways
        for entry in best[:several]:
            ways = lone_ways.get(entry[-1])
            if ways is None:
                enough = WAYS_OF_THE_NEXT if choices else WAYS_OF_THE_BEST
                ways = cache.ways(entry[-1], enough, shunned)
            choices += ways
        record, removals = self._recorder.record(best, avoided, cache.refused), self.removals()
        order.leave([*best[1:], *avoided])
        pick = Pick(
            crossed=order.tier(winner) == THEIR_HOSTS,
            choices=tuple(choices[:most]),
            promise=self._promises.enter(choices[0]),
            considered=self._search.considered,
            removals=removals,
            record=record,
            scores=self._weights.scores(self._recorder.hosts[winner]),
            notes=self._notes,
        )
        cache.chosen[winner] = cache.chosen.get(winner, 0) + 1
        self._changed(winner, best[0][3], choices[0])
        return pick

    def put_back(self, picks: Collection[Pick]) -> None:
        """Release picked hosts as if they had never been chosen."""
        for pick in picks:
            self._promises.drop(pick.promise)
        for pick in picks:
            index = self._found.index(pick.root)
            self.cache.chosen[index] -= 1
            self._full.pop(index, None)
            self._changed(index, self._order.moved[index][3], pick.choices[0])
        full, self._full = self._full, {}
        self._order.push(full.values())
        self._order.evaluate_again()

    def spares(
        self, cell: str, several: int, beside: Collection[str], avoid: Collection[str] = ()
    ) -> tuple[Candidate, ...]:
        """Return the next best hosts of a cell, without the given roots; each named host counts as fuller."""
        if not several:
            return ()
        spares = self._spares.get(cell)
        if spares is None:
            spares = self._spares[cell] = AlternatesOfCell(
                cell, self.alternative, self._order, self.cache, self.capacities, self._weights
            )
        return spares.take(several, beside, avoid)

    def admitted(self, beyond: int = -1) -> Sequence[int]:
        """Return the positions after `beyond` of the hosts that no array filter excludes."""
        first = np.searchsorted(self._positions[self._order.admitted], beyond, side="right")
        indices: list[int] = self._order.admitted[first:].tolist()
        return indices

    def fits(self, index: int) -> bool:
        """Return whether a host still fits."""
        return self.cache.admits(index) and bool(self.cache.ways(index, 1))

    def position(self, index: int) -> int:
        return self._positions.item(index)

    def host(self, index: int) -> PlacedHost:
        return self._found.host(index)

    def free(self, resource_class: str) -> Floats:
        """Return the free amount of a resource class in the provider tree of each host."""
        return self._search.free(resource_class)

    def removals(self) -> tuple[Removal, ...]:
        """Return how many hosts each constraint of placement rejected, then each evaluated filter."""
        state = len(self.cache.refused), len(self._full)
        if self._removals is None or self._removals[0] != state:
            if self._beforehand is None:
                self._beforehand = tuple(
                    [named_reserved(self.alternative, removal) for removal in self._search.removals()]
                )
                self._counted = self._gone_since(self._beforehand)
            refused, full, counted = self.cache.refused, self._full, self._counted
            if counted:
                refused = {index: why for index, why in refused.items() if index not in counted}
                full = {index: entry for index, entry in full.items() if index not in counted}
            ours = self._verdicts.removals(refused, full, len(self._positions) - len(counted))
            self._removals = state, (*self._beforehand, *ours)
        return self._removals[1]

    def _gone_since(self, removals: Sequence[Removal]) -> set[int]:
        left = removals[-1].left if removals else self._search.considered
        if left >= len(self._positions):
            return set()
        refused = (index for index in self.cache.refused if index in self.cache.chosen)
        return {*self._full, *(index for index in refused if not self.cache.ways(index, 1))}

    def shortage(self) -> Shortage:
        """Return why no host is left."""
        self._beforehand = self._removals = None
        beyond = self._search.nearest(self.alternative.pinned, NEAREST_BEYOND)
        named = self._source.named
        reserved = [lacking_reserved(self.alternative, miss, named(miss.host)) for miss in beyond]
        return Shortage(
            considered=self._search.considered,
            removals=self.removals(),
            nearest=self._verdicts.nearest(self.cache.refused, self._full, reserved),
            named=bool(self.alternative.pinned),
            may_pass=self._verdicts.may_pass(self.cache.refused),
            alternative_index=self.alternative.alternative_index,
            notes=self._notes,
        )

    # One host

    def _next(self) -> Entry | None:
        cache, pop = self.cache, self._order.pop
        admitted, lone_ways, keeps = cache.admitted, cache.lone_ways, cache.keeps_together
        while (entry := pop()) is not None:
            index = entry[-1]
            if not (index in admitted or cache.admits(index)) or (keeps is not None and cache.parts(index)):
                self._recorder.pass_over(entry)
            elif index in lone_ways or cache.ways(index, 1):
                return entry
            else:
                self._full[index] = entry
        return None

    def _changed(self, index: int, its_tie: int, way: Candidate) -> None:
        """Weigh a chosen or released host again, and put it at its new position in the order."""
        self.turns += 1
        cache, order, recorder = self.cache, self._order, self._recorder
        cache.forget(index)
        if len(way.allocations) > 1 or way.root not in way.allocations:
            cache.forget_trees()
            order.evaluate_again()
        recorder.hosts.pop(index, None)
        facts, weights = self._found.read_again(index), self._weights
        values = recorder.values[index] = weights.read(facts)
        score = weights.worth(facts, values)
        order.move((order.tier(index), -score, cache.chosen[index], its_tie, index))
        spares = self._spares.get(way.cell)
        if spares is not None:
            spares.moved(index)


def _admitted(
    alternative: Alternative, view: AllHosts, rules: Sequence[Rule], served: Bools
) -> tuple[Ints, list[Mask]]:
    admitted, masks = served.copy(), list[Mask]()
    for rule in rules:
        if rule.admits is not None:
            mask = rule.admits(view, alternative)
            if np.ndim(mask) == 0:
                if mask:  # no host is rejected
                    continue
                mask = np.broadcast_to(np.bool_(mask), len(served))
            masks.append((rule, mask))
            admitted &= mask
    return np.flatnonzero(admitted), masks
