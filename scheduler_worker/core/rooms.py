"""For how many more of a request hosts had room at the beginning, and those of a cell that had the most."""

from collections.abc import Callable

import numpy as np

from bus.candidates import CandidateSearch, Floats, Ints
from scheduler_worker.core.frontier import nth_best
from scheduler_worker.core.host_map import HostMap
from scheduler_worker.core.ties import Uints
from scheduler_worker.core.wish import Wish

ROOMIEST = 64  # of a cell, how many are named as alternates by turns


class Rooms:
    """Of the hosts that masks admit, known by their index into the arrays of the search.

    They are put in order of their cells once, for a kind of request mostly names alternates in all of them.
    """

    def __init__(
        self,
        wish: Wish,
        search: CandidateSearch,
        shared: set[str],
        hosts: HostMap,
        admitted: Ints,
        ties: Callable[[Ints], Uints],
    ) -> None:
        self._hosts = hosts
        self._ties = ties
        positions = search.positions
        # What others share is not counted.
        counted = [
            search.free(name) / amount for name, amount in wish.asked.items() if amount and name not in shared
        ]
        rooms = counted[0] if counted else np.full(len(positions), np.inf)
        for others in counted[1:]:
            np.minimum(rooms, others, out=rooms)
        # Of whole numbers below 2⁵³ the same as //, and quicker.
        self._rooms: Floats = np.floor(rooms, out=rooms)
        at: Ints = np.full(len(hosts.served), -1, np.intp)
        at[positions if len(admitted) == len(positions) else positions.take(admitted)] = admitted
        at = at.take(hosts.by_cell)
        these = np.flatnonzero(at >= 0)
        self._by_cell = at.take(these)
        self._rooms_by_cell = self._rooms.take(self._by_cell)
        bounds = np.searchsorted(these, hosts.first_of_cell)
        there = np.flatnonzero(bounds[1:] > bounds[:-1])  # the cells of which there is anybody
        most = np.zeros(len(bounds))
        if there.size:
            most[there] = np.maximum.reduceat(self._rooms_by_cell, bounds.take(there))
        self._first_of: list[int] = bounds.tolist()
        self._most: list[float] = np.maximum(most, 0.0, out=most).tolist()

    def of(self, index: int) -> float:
        return float(self._rooms.item(index))

    def most(self, cell: str) -> float:
        """That any host of the cell had."""
        number = self._hosts.cells.get(cell)
        return 0.0 if number is None or number >= len(self._most) else self._most[number]

    def roomiest(self, cell: str, least: float) -> list[int]:
        """A quarter of the cell's hosts, and no more than some, shuffled by the request.

        None of them has less room than this.
        """
        there = self._where_is(cell)
        those, rooms = self._by_cell[there], self._rooms_by_cell[there]
        several = min(those.size // 4 + 1, ROOMIEST)
        if those.size > several:  # few are left to be sorted
            least = max(least, nth_best(rooms, several))
        near = np.flatnonzero(rooms >= least)
        those, rooms = those.take(near), rooms.take(near)
        its_ties = self._ties(those)
        if those.size > several:
            first = np.lexsort((its_ties, -rooms))[:several]
            those, its_ties = those.take(first), its_ties.take(first)
        indices: list[int] = those.take(np.argsort(its_ties)).tolist()
        return indices

    def _where_is(self, cell: str) -> slice:
        number = self._hosts.cells.get(cell)
        if number is None or number + 1 >= len(self._first_of):
            return slice(0, 0)
        return slice(self._first_of[number], self._first_of[number + 1])
