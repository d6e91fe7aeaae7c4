"""Sorts all hosts once for equal requests, and chooses the best hosts one after another.

A chosen host is reserved immediately, and sorted again by its remaining capacity.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from heapq import heappop, heappush
from operator import and_

import numpy as np

from bus.candidates import Floats
from bus.queries import Candidate
from scheduler_worker.core.fitting import WAYS_OF_THE_BEST, Entry, FoundHosts
from scheduler_worker.core.ranking_order import THEIR_HOSTS, CapacityByHost, HostOrder, tiers_of
from scheduler_worker.core.rejections import Verdicts
from scheduler_worker.core.scale import ChoiceRecorder, HasReservations, Pick, Weights
from scheduler_worker.core.scope import PLAIN, Scope

TIGHT = 0.75  # alternates with less than this fraction of the largest capacity count as nearly full
_NOWHERE = (0, float("inf"), 0, 0, -1)
WAYS_OF_THE_NEXT = 4  # allocation candidates of each host in a claim, except the best host


class Ranking:
    """All hosts for equal requests, sorted by score; the caller must not await anything between choices."""

    def __init__(self, found: FoundHosts, reservations: HasReservations, seed: str) -> None:
        self.alternative = alternative = found.alternative
        self.found = found
        self._subset = found.policy.subset
        self._reservations = reservations
        liked = [trait for trait, weight in alternative.preferred.items() if weight > 0]
        missing = [trait for trait in liked if not np.any(found.view.has(trait))]
        notes = [f"preferred_traits: no host that fits has {trait}" for trait in missing]
        notes += [
            f"preferred_resources: no host that fits has {amount} {name} free"
            for name, (amount, weight) in alternative.preferred_amounts.items()
            if weight > 0 and not np.any(found.view.free(name) >= amount)
        ]
        self._notes = (*alternative.notes, *notes)
        self.verdicts = Verdicts(found, self._notes)
        self._weights = Weights(found)
        # A request that names its hosts is not restricted to this scheduler's preferred hosts.
        ours = None if alternative.question.roots else found.hosts.ours
        tiers = tiers_of(found.positions, ours, found.view.now.unknown)
        admitted = np.flatnonzero(reduce(and_, [mask for _, mask in found.masks]))
        self._order = HostOrder(seed, found.hosts, found.positions, self._weights.worths, tiers, admitted)
        self._recorder = ChoiceRecorder(seed, self._weights)
        self.capacities = CapacityByHost(found, self._order)
        self._alternates: dict[str, AlternatesOfCell] = {}
        self.turns = 0  # counts the choices and releases of hosts

    @property
    def worths(self) -> Floats:
        """Return the score of each found host before any choice."""
        return self._weights.worths

    def take(
        self,
        several: int = 1,
        most: int = 64,
        avoid: Collection[str] = (),
        draw: Callable[[int], int] | None = None,
        scope: Scope = PLAIN,
    ) -> Pick | None:
        """Reserve the best host, and return it with the next best hosts in case placement refuses it: at most
        `several` hosts, with at most `most` allocation candidates in total. Return None if no host fits.

        Hosts that require a provider in `avoid` are chosen only if no other host fits. With the setting
        `subset`, `draw(n)` returns the index of the host to choose among the n best. What the instance holds
        already (`scope.held`) is not reserved again.
        """
        subset, found, order = self._subset, self.found, self._order
        wanted = max(several, subset)
        best = [] if avoid or found.keeps_together is not None else order.pop_left(wanted)
        avoided: list[Entry] = []
        while len(best) < wanted and (entry := self._next()) is not None:
            (avoided if avoid and not found.ways(entry[-1], 1, avoid) else best).append(entry)
        if late := bool(avoided and not best):
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
            reservation=self._reservations.enter(choices[0], scope.held),
            scope=scope,
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
        """Release the reservations of chosen hosts, which then can be chosen again."""
        found, order = self.found, self._order
        for pick in picks:
            self._reservations.drop(pick.reservation)
        for pick in picks:
            index = found.index(pick.root)
            found.chosen[index] -= 1
            found.full.pop(index, None)
            self._changed(index, order.moved[index][3], pick.choices[0])
        order.push(found.full.values())
        found.full.clear()
        order.evaluate_again()

    def alternates(
        self, cell: str, several: int, excluding: Collection[str], avoid: Collection[str] = ()
    ) -> tuple[Candidate, ...]:
        """Return the next best hosts of a cell as alternates of one instance. Hosts returned before rank
        lower, so that instances get different alternates.
        """
        if not several:
            return ()
        alternates = self._alternates.get(cell)
        if alternates is None:
            alternates = AlternatesOfCell(cell, self.found, self._order, self.capacities, self._weights)
            self._alternates[cell] = alternates
        return alternates.take(several, excluding, avoid)

    def admitted(self, beyond: int = -1) -> Sequence[int]:
        """Return the indices of hosts that pass all filters on arrays of hosts, without hosts up to the
        position `beyond` in placement's index. Filters for single hosts may still reject some of them.
        """
        first = np.searchsorted(self.found.positions[self._order.admitted], beyond, side="right")
        indices: list[int] = self._order.admitted[first:].tolist()
        return indices

    def _next(self) -> Entry | None:
        found, pop = self.found, self._order.pop
        admitted, lone_ways, keeps_together = found.admitted, found.lone_ways, found.keeps_together
        while (entry := pop()) is not None:
            index = entry[-1]
            fits = index in admitted or found.admits(index)
            if not fits or (keeps_together is not None and found.fits_too_few(index)):
                self._recorder.pass_over(entry)
            elif index in lone_ways or found.ways(index, 1):
                return entry
            else:
                found.full[index] = entry
        return None

    def _changed(self, index: int, its_tie: int, way: Candidate) -> None:
        """Compute a host's score again after the allocations `way` were reserved or released there, and
        correct the host's place in the ranking. `its_tie` is the hash that orders equal scores.
        """
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
        alternates = self._alternates.get(way.cell)
        if alternates is not None:
            alternates.moved(index)


class AlternatesOfCell:
    """Selects alternates for builds of one cell, from one evaluation. No capacity is reserved for them.

    The next best hosts are selected; each selected host then ranks as if it were fuller. If weighers prefer
    full hosts, an alternate can be full before it is needed, and a cell cannot request more alternates. So if
    an instance gets two or more alternates, nearly full hosts are replaced by some of the emptiest hosts of
    the cell.
    """

    def __init__(
        self, cell: str, found: FoundHosts, order: HostOrder, capacities: CapacityByHost, weights: Weights
    ) -> None:
        self._found = found
        self._order = order
        self._capacities = capacities
        self._weights = weights
        self._cell = cell
        self._sorted: list[Entry] = []  # the hosts of the cell, sorted by their scores before any choice
        self._at = 0
        self._heap: list[Entry] = []
        self._named: dict[int, int] = {}
        self._fuller: dict[int, Entry] = {}  # index of an alternate → its present place in the order
        self._asked = found.alternative.asked
        self._enough: float | None = None  # least capacity that is not nearly full; None: not computed yet
        self._roomy: deque[int] | None = None  # the emptiest hosts, in rotation; None: not computed yet

    def take(self, several: int, excluding: Collection[str], avoid: Collection[str]) -> tuple[Candidate, ...]:
        found: list[Entry] = []
        alternates: list[Candidate] = []
        passed_over: list[Entry] = []
        while len(found) < several and (entry := self._next()) is not None:
            index = entry[-1]
            way = self._found.way(index)
            if way is None:
                continue
            if way.root in excluding or (avoid and (way := self._found.way(index, avoid)) is None):
                passed_over.append(entry)
            else:
                found.append(entry)
                alternates.append(way)
        roomy: list[Candidate] = []
        taken = {way.root for way in alternates}.union(excluding)
        complete = several > 1 and len(found) == several
        while complete and found and not self._is_empty_enough(found[-1][-1]):
            way = self._next_emptiest(taken, avoid)
            if way is None:
                break
            roomy.append(way)
            taken.add(way.root)
            passed_over.append(found.pop())
            alternates.pop()
        for entry in passed_over:
            heappush(self._heap, entry)
        for entry, way in zip(found, alternates, strict=True):
            self._name(entry, way)
        return (*alternates, *roomy)

    def _is_empty_enough(self, index: int) -> bool:
        capacities = self._capacities
        has = capacities.of(index)
        if self._enough is None:
            if has >= TIGHT * capacities.at_most:
                return True
            self._enough = TIGHT * capacities.most(self._cell)
        return has >= self._enough

    def _next_emptiest(self, taken: Collection[str], avoid: Collection[str]) -> Candidate | None:
        """Return one of the emptiest hosts as an alternate, except hosts in `taken` (root ids), with none of
        the providers in `avoid`; None if no host fits. Successive calls return different hosts.
        """
        if self._roomy is None:
            assert self._enough is not None  # the caller has computed it
            self._roomy = deque(self._capacities.emptiest(self._cell, self._enough))
        for _ in range(len(self._roomy)):
            index = self._roomy.popleft()
            way = self._found.way(index)
            if way is None:
                continue  # the host is full now, or a filter rejects it
            self._roomy.append(index)
            if way.root not in taken and (way := self._found.way(index, avoid)):
                return way
        return None

    def moved(self, index: int) -> None:
        """Sort a host among the possible alternates again after it received or lost a build."""
        now = self._order.moved[index]
        named = self._named.get(index)
        if named:
            less = named * self._weights.one_more(index)
            now = self._fuller[index] = (now[0], now[1] + less, now[2] + named, now[3], index)
        heappush(self._heap, now)

    def _next(self) -> Entry | None:
        while True:
            if self._at == len(self._sorted):
                self._sorted = self._order.of_cell(self._cell, self._at)
            heap, front = self._heap, self._sorted
            if heap and (self._at == len(front) or heap[0] <= front[self._at]):
                entry = heappop(heap)
                while heap and heap[0] == entry:
                    heappop(heap)
            elif self._at < len(front):
                entry = front[self._at]
                self._at += 1
            else:
                return None
            now = self._fuller.get(entry[-1]) or self._order.moved.get(entry[-1], entry)
            if now == entry:
                return entry

    def _name(self, entry: Entry, way: Candidate) -> None:
        """Rank a host that became an alternate as if it had one more instance, so that not too many builds
        get the same alternate.
        """
        outside, worth, chosen, its_tie, index = entry
        self._named[index] = named = self._named.get(index, 0) + 1
        free = way.free
        for name, amount in self._asked.items():
            if name in free and free[name] < (named + 1) * amount:
                self._fuller[index] = _NOWHERE
                return
        one_more = self._weights.one_more(index)
        self._fuller[index] = entry = (outside, worth + one_more, chosen + 1, its_tie, index)
        heappush(self._heap, entry)
