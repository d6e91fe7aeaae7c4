"""One evaluation of all hosts for equal requests, from which hosts are handed out best first.

A host that is handed out is reserved immediately, weighed again with its remaining capacity, and sorted in
again. So each choice is the best at its moment, on the scales of the beginning.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from operator import and_

import numpy as np

from bus.candidates import CandidateSearch
from bus.queries import Candidate
from scheduler_worker.core.alternates import AlternatesOfCell, CapacityByHost
from scheduler_worker.core.fitting import WAYS_OF_THE_BEST, FoundHosts
from scheduler_worker.core.host_map import HostMap
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.ranking_order import THEIR_HOSTS, Entry, HostOrder, tiers_of
from scheduler_worker.core.rejections import Verdicts
from scheduler_worker.core.rule import Alternative
from scheduler_worker.core.scale import ChoiceRecorder, HasReservations, Pick, Weights
from scheduler_worker.core.view import HostsNow

WAYS_OF_THE_NEXT = 4  # allocation candidates of each host after the best one


class Ranking:
    """One evaluation of all hosts for equal requests; nothing may be awaited while it is used."""

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
        self.found = found = FoundHosts(alternative, search, now, hosts, policy)
        self._subset = policy.subset
        self._promises = promises
        missing = [
            f"preferred_traits: no host that fits has {trait}"
            for trait, weight in alternative.preferred.items()
            if weight > 0 and not np.any(found.view.has(trait))
        ]
        self._notes = (*alternative.notes, *missing)
        self.verdicts = Verdicts(found, self._notes)
        self._weights = Weights(found)
        # Slices of schedulers do not apply to a request that names its hosts.
        tiers = tiers_of(search.positions, None if alternative.question.roots else hosts.ours, now.unknown)
        admitted = np.flatnonzero(reduce(and_, [mask for _, mask in found.masks]))
        self._order = HostOrder(seed, hosts, search.positions, self._weights.worths, tiers, admitted)
        self._recorder = ChoiceRecorder(seed, self._weights)
        self.capacities = CapacityByHost(found, self._order)
        self._spares: dict[str, AlternatesOfCell] = {}
        self.turns = 0  # changes whenever a host is chosen or returned

    # Handing out

    def take(
        self,
        several: int = 1,
        most: int = 64,
        avoid: Collection[str] = (),
        draw: Callable[[int], int] | None = None,
    ) -> Pick | None:
        """Choose the best host and count it as used; the next best hosts follow, in case placement refuses
        it.

        Hosts that require a provider in `avoid` are chosen only if no other host fits.
        """
        subset, found, order = self._subset, self.found, self._order
        wanted = max(several, subset)
        best = [] if avoid or found.keeps_together is not None else order.pop_left(wanted)
        avoided: list[Entry] = []
        while len(best) < wanted and (entry := self._next()) is not None:
            (avoided if avoid and not found.ways(entry[-1], 1, avoid) else best).append(entry)
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
        lone_ways: Mapping[int, tuple[Candidate, ...]] = {} if shunned else found.lone_ways
        for entry in best[:several]:
            ways = lone_ways.get(entry[-1])
            if ways is None:
                enough = WAYS_OF_THE_NEXT if choices else WAYS_OF_THE_BEST
                ways = found.ways(entry[-1], enough, shunned)
            choices += ways
        record, removals = self._recorder.record(best, avoided), self.verdicts.removals()
        order.leave([*best[1:], *avoided])
        pick = Pick(
            crossed=order.tier(winner) == THEIR_HOSTS,
            choices=tuple(choices[:most]),
            promise=self._promises.enter(choices[0]),
            considered=found.search.considered,
            removals=removals,
            record=record,
            scores=self._weights.scores(self._recorder.hosts[winner]),
            notes=self._notes,
        )
        found.chosen[winner] = found.chosen.get(winner, 0) + 1
        self._changed(winner, best[0][3], choices[0])
        return pick

    def put_back(self, picks: Collection[Pick]) -> None:
        """Release picked hosts as if they had never been chosen."""
        found, order = self.found, self._order
        for pick in picks:
            self._promises.drop(pick.promise)
        for pick in picks:
            index = found.index(pick.root)
            found.chosen[index] -= 1
            found.full.pop(index, None)
            self._changed(index, order.moved[index][3], pick.choices[0])
        order.push(found.full.values())
        found.full.clear()
        order.evaluate_again()

    def spares(
        self, cell: str, several: int, excluding: Collection[str], avoid: Collection[str] = ()
    ) -> tuple[Candidate, ...]:
        """Return the next best hosts of a cell as alternates; each counts as fuller afterwards."""
        if not several:
            return ()
        spares = self._spares.get(cell)
        if spares is None:
            spares = AlternatesOfCell(cell, self.found, self._order, self.capacities, self._weights)
            self._spares[cell] = spares
        return spares.take(several, excluding, avoid)

    def admitted(self, beyond: int = -1) -> Sequence[int]:
        """Return the positions after `beyond` of the hosts that pass all filters on arrays."""
        first = np.searchsorted(self.found.positions[self._order.admitted], beyond, side="right")
        indices: list[int] = self._order.admitted[first:].tolist()
        return indices

    # One host

    def _next(self) -> Entry | None:
        found, pop = self.found, self._order.pop
        admitted, lone_ways, keeps = found.admitted, found.lone_ways, found.keeps_together
        while (entry := pop()) is not None:
            index = entry[-1]
            if not (index in admitted or found.admits(index)) or (keeps is not None and found.parts(index)):
                self._recorder.pass_over(entry)
            elif index in lone_ways or found.ways(index, 1):
                return entry
            else:
                found.full[index] = entry
        return None

    def _changed(self, index: int, its_tie: int, way: Candidate) -> None:
        """Weigh a chosen or released host again, and put it at its new position in the order."""
        self.turns += 1
        found, order, recorder = self.found, self._order, self._recorder
        found.forget(index)
        if len(way.allocations) > 1 or way.root not in way.allocations:
            found.forget_trees()
            order.evaluate_again()
        recorder.hosts.pop(index, None)
        facts, weights = found.read_again(index), self._weights
        values = recorder.values[index] = weights.read(facts)
        score = weights.worth(facts, values)
        order.move((order.tier(index), -score, found.chosen[index], its_tie, index))
        spares = self._spares.get(way.cell)
        if spares is not None:
            spares.moved(index)
