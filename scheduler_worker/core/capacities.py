"""The number of further instances of a request that each host could take at the beginning, and the hosts of a
cell with the most.
"""

from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from bus.candidates import CandidateSearch, CandidateSource, Floats, Ints
from scheduler_worker.core.alternative import Alternative
from scheduler_worker.core.frontier import best_value
from scheduler_worker.core.host_map import HostMap
from scheduler_worker.core.ranking_order import HostOrder

ROOMIEST = 64  # of a cell, how many are named as alternates by turns


class CapacityByHost:
    """Capacities of the hosts that masks admit, by their index in the arrays of the search.

    They are grouped by cell on first use. Usually only the capacity of one host and the maximum are needed.
    """

    def __init__(
        self,
        alternative: Alternative,
        search: CandidateSearch,
        source: CandidateSource,
        hosts: HostMap,
        order: HostOrder,
    ) -> None:
        self._wish = alternative
        self._search = search
        self._source = source
        self._hosts = hosts
        self._order = order

    @cached_property
    def _counted(self) -> list[tuple[Floats, float]]:
        """Return the free amounts and the requested amount of each class. Shared pools are not counted."""
        shared = set[str]().union(*self._source.sharing.values())
        return [
            (self._search.free(name), float(amount))
            for name, amount in self._wish.asked.items()
            if amount and name not in shared
        ]

    @cached_property
    def at_most(self) -> float:
        """Return an upper bound of all capacities; possibly no host reaches it."""
        return max(_whole([free.max(initial=0.0) / amount for free, amount in self._counted]), 0.0)

    def of(self, index: int) -> float:
        return _whole([free.item(index) / amount for free, amount in self._counted])

    def most(self, cell: str) -> float:
        """Return the largest capacity of the cell's hosts."""
        number = self._hosts.cells.get(cell)
        most = self._in_order.most
        return 0.0 if number is None or number >= len(most) else most[number]

    def roomiest(self, cell: str, least: float) -> list[int]:
        """Return a quarter of the cell's hosts with the largest capacity, at most 64, shuffled by the
        request, each with at least `least`.
        """
        there, in_order = self._where_is(cell), self._in_order
        those, capacities = in_order.indices[there], in_order.capacities[there]
        several = min(those.size // 4 + 1, ROOMIEST)
        if those.size > several:  # few are left to be sorted
            least = max(least, best_value(capacities, several))
        near = np.flatnonzero(capacities >= least)
        those, capacities = those.take(near), capacities.take(near)
        its_ties = self._order.ties(those)
        if those.size > several:
            first = np.lexsort((its_ties, -capacities))[:several]
            those, its_ties = those.take(first), its_ties.take(first)
        indices: list[int] = those.take(np.argsort(its_ties)).tolist()
        return indices

    def _where_is(self, cell: str) -> slice:
        number, first_of = self._hosts.cells.get(cell), self._in_order.first_of
        if number is None or number + 1 >= len(first_of):
            return slice(0, 0)
        return slice(first_of[number], first_of[number + 1])

    @cached_property
    def _in_order(self) -> "_ByCell":
        positions, admitted, hosts = self._search.positions, self._order.admitted, self._hosts
        capacities: Floats = np.full(len(positions), np.inf)
        for free, amount in self._counted:
            np.minimum(capacities, free / amount, out=capacities)
        # Of whole numbers below 2⁵³ the same as //, and quicker.
        np.floor(capacities, out=capacities)
        at: Ints = np.full(len(hosts.served), -1, np.intp)
        at[positions if len(admitted) == len(positions) else positions.take(admitted)] = admitted
        at = at.take(hosts.by_cell)
        these = np.flatnonzero(at >= 0)
        indices = at.take(these)
        capacities = capacities.take(indices)
        bounds = np.searchsorted(these, hosts.first_of_cell)
        there = np.flatnonzero(bounds[1:] > bounds[:-1])  # cells with at least one host
        most = np.zeros(len(bounds))
        if there.size:
            most[there] = np.maximum.reduceat(capacities, bounds.take(there))
        return _ByCell(indices, capacities, bounds.tolist(), np.maximum(most, 0.0, out=most).tolist())


@dataclass(frozen=True, slots=True)
class _ByCell:
    """The capacities grouped by cell."""

    indices: Ints
    capacities: Floats
    first_of: list[int]  # cell number → where its hosts begin
    most: list[float]  # cell number → the room of its roomiest


def _whole(capacities: list[float]) -> float:
    """Return how many instances fit, from how many fit by each resource class."""
    return min(capacities) // 1.0 if capacities else inf
