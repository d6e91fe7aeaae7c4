"""Chooses alternates: the next best hosts of one cell, each counted as fuller once it is named.

While packing, the next best hosts are full before they are needed, and a cell cannot request more. So of
two or more alternates, tight hosts are replaced by some of the roomiest hosts of the cell.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from math import inf

import numpy as np

from bus.candidates import Floats, Ints
from bus.queries import Candidate
from scheduler_worker.core.fitting import FoundHosts
from scheduler_worker.core.ranking_order import Entry, HostOrder, best_value
from scheduler_worker.core.scale import Weights

ROOMIEST = 64  # of a cell, how many are named as alternates by turns
TIGHT = 0.75  # share of the largest capacity; hosts below it are tight
_NOWHERE = (0, float("inf"), 0, 0, -1)


@dataclass(eq=False)
class CapacityByHost:
    """The number of further instances that each admitted host could take, by the index of the host."""

    found: FoundHosts
    order: HostOrder

    @cached_property
    def _counted(self) -> list[tuple[Floats, float]]:
        shared = set[str]().union(*self.found.source.sharing.values())
        return [
            (self.found.search.free(name), float(amount))
            for name, amount in self.found.alternative.asked.items()
            if amount and name not in shared
        ]

    @cached_property
    def at_most(self) -> float:
        """Return an upper bound for the capacity of every host."""
        return max(min([free.max(initial=0.0) // amount for free, amount in self._counted], default=inf), 0.0)

    def of(self, index: int) -> float:
        return min([free.item(index) // amount for free, amount in self._counted], default=inf)

    def most(self, cell: str) -> float:
        number = self.found.hosts.cells.get(cell)
        most = self._in_order.most
        return 0.0 if number is None or number >= len(most) else most[number]

    def roomiest(self, cell: str, least: float) -> list[int]:
        """Return at most 64 hosts of the cell with the largest capacity, `least` or more, in random order."""
        there, in_order = self._where_is(cell), self._in_order
        indices, capacities = in_order.indices[there], in_order.capacities[there]
        several = min(indices.size // 4 + 1, ROOMIEST)
        if indices.size > several:  # few are left to be sorted
            least = max(least, best_value(capacities, several))
        near = np.flatnonzero(capacities >= least)
        indices, capacities = indices.take(near), capacities.take(near)
        its_ties = self.order.ties(indices)
        if indices.size > several:
            first = np.lexsort((its_ties, -capacities))[:several]
            indices, its_ties = indices.take(first), its_ties.take(first)
        roomiest: list[int] = indices.take(np.argsort(its_ties)).tolist()
        return roomiest

    def _where_is(self, cell: str) -> slice:
        number, first_of = self.found.hosts.cells.get(cell), self._in_order.first_of
        if number is None or number + 1 >= len(first_of):
            return slice(0, 0)
        return slice(first_of[number], first_of[number + 1])

    @cached_property
    def _in_order(self) -> "_ByCell":
        positions, admitted, hosts = self.found.positions, self.order.admitted, self.found.hosts
        capacities: Floats = np.full(len(positions), np.inf)
        for free, amount in self._counted:
            np.minimum(capacities, free / amount, out=capacities)
        # Of whole numbers below 2⁵³ the same as //, and quicker.
        np.floor(capacities, out=capacities)
        at: Ints = np.full(len(hosts.served), -1, np.intp)
        at[positions if len(admitted) == len(positions) else positions.take(admitted)] = admitted
        at = at.take(hosts.by_cell)
        found = np.flatnonzero(at >= 0)
        indices = at.take(found)
        capacities = capacities.take(indices)
        bounds = np.searchsorted(found, hosts.first_of_cell)
        there = np.flatnonzero(bounds[1:] > bounds[:-1])  # cells with at least one host
        most = np.zeros(len(bounds))
        if there.size:
            most[there] = np.maximum.reduceat(capacities, bounds.take(there))
        return _ByCell(indices, capacities, bounds.tolist(), np.maximum(most, 0.0, out=most).tolist())


@dataclass(frozen=True, slots=True)
class _ByCell:
    """The capacities of hosts, grouped by cell."""

    indices: Ints
    capacities: Floats
    first_of: list[int]  # cell number → where its hosts begin
    most: list[float]  # cell number → the room of its roomiest


class AlternatesOfCell:
    """The alternates that one evaluation names for builds of a cell; no capacity is reserved for them."""

    def __init__(
        self,
        cell: str,
        found: FoundHosts,
        order: HostOrder,
        capacities: CapacityByHost,
        weights: Weights,
    ) -> None:
        self._found = found
        self._order = order
        self._capacities = capacities
        self._weights = weights
        self._cell = cell
        self._sorted: list[Entry] = []  # hosts of the cell in the order of the beginning
        self._at = 0
        self._heap: list[Entry] = []
        self._named: dict[int, int] = {}
        self._fuller: dict[int, Entry] = {}  # entries of hosts that were named
        self._asked = found.alternative.asked
        self._enough: float | None = None  # capacity of a roomy host; None: not computed yet
        self._roomy: deque[int] | None = None  # roomy hosts in rotation

    def take(self, several: int, excluding: Collection[str], avoid: Collection[str]) -> tuple[Candidate, ...]:
        found: list[Entry] = []
        spares: list[Candidate] = []
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
                spares.append(way)
        roomy: list[Candidate] = []
        taken = {way.root for way in spares}.union(excluding)
        complete = several > 1 and len(found) == several
        while complete and found and not self._is_roomy(found[-1][-1]):
            way = self._next_roomy(taken, avoid)
            if way is None:
                break
            roomy.append(way)
            taken.add(way.root)
            passed_over.append(found.pop())
            spares.pop()
        for entry in passed_over:
            heappush(self._heap, entry)
        for entry, way in zip(found, spares, strict=True):
            self._name(entry, way)
        return (*spares, *roomy)

    def _is_roomy(self, index: int) -> bool:
        capacities = self._capacities
        has = capacities.of(index)
        if self._enough is None:
            if has >= TIGHT * capacities.at_most:
                return True
            self._enough = TIGHT * capacities.most(self._cell)
        return has >= self._enough

    def _next_roomy(self, taken: Collection[str], avoid: Collection[str]) -> Candidate | None:
        """Return hosts with much free capacity in turn, so that builds do not all name the same alternate."""
        if self._roomy is None:
            assert self._enough is not None  # computed before any alternate is replaced
            self._roomy = deque(self._capacities.roomiest(self._cell, self._enough))
        for _ in range(len(self._roomy)):
            index = self._roomy.popleft()
            way = self._found.way(index)
            if way is None:
                continue  # full by now, or refused
            self._roomy.append(index)
            if way.root not in taken and (way := self._found.way(index, avoid)):
                return way
        return None

    def moved(self, index: int) -> None:
        """Update the capacity of a host that was chosen or released."""
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
        """Count a host as fuller after naming it as an alternate, so that it is not named too often."""
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
