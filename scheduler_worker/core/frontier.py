"""The best of many hosts first, sorted only as far as they are read."""

from collections.abc import Callable

import numpy as np

from bus.candidates import Floats, Ints
from scheduler_worker.core.tie_break import Uints

FIRST_PAGE = 64
GROWTH = 2  # each page is so many times as long as the one before
AHEAD = 8  # pages that are separated from the rest in one step: the next pages are found among few hosts
ALIKE = 2  # so many times a page is taken as it is, rather than cut among equals


def best_value(worths: Floats, count: int) -> float:
    """Return the value that the best `count` reach."""
    return float(np.partition(worths, worths.size - count)[worths.size - count])


def cut(
    among: Ints, worths: Floats, edge: float, several: int, ties: Callable[[Ints], Uints]
) -> tuple[Ints, Ints]:
    """Return the requested number of best hosts, and the rest, both unsorted. Equal hosts are ordered by
    their ties, the lowest first.
    """
    better, alike = among.compress(worths > edge), among.compress(worths == edge)
    wanted = several - better.size
    if wanted < alike.size:
        order = np.argpartition(ties(alike), wanted)
        alike = alike[order]
    best: Ints = np.concatenate((better, alike[:wanted]))
    return best, np.concatenate((alike[wanted:], among.compress(worths < edge)))


class Frontier:
    """Sorts the indices of an array of weights page by page: the highest weight first, then the lowest
    tie.
    """

    def __init__(self, worth: Floats, among: Ints, ties: Callable[[Ints], Uints]) -> None:
        self._worth = worth
        self._near = among[:0]  # better than all that are far
        self._far = among
        self._ties = ties
        self._page = FIRST_PAGE

    def page(self) -> tuple[Ints, Uints]:
        """Return the next best indices in order, with their ties; empty after the last page."""
        page, self._page = self._page, self._page * GROWTH
        if self._near.size < page and self._far.size:
            nearer, self._far = self._split(self._far, AHEAD * page)
            self._near = np.concatenate((self._near, nearer))
        taken, self._near = self._split(self._near, page)
        ties = self._ties(taken)
        order = np.lexsort((ties, -self._worth.take(taken)))
        return taken.take(order), ties.take(order)

    def _split(self, among: Ints, several: int) -> tuple[Ints, Ints]:
        """Return about the requested number of best hosts, and the rest. Of hosts that are equal at the limit
        only the needed ones are taken.
        """
        if among.size <= ALIKE * several:
            return among, among[:0]
        # Where it is all of them they are in their order still.
        worths = self._worth if among.size == self._worth.size else self._worth.take(among)
        edge = best_value(worths, several)
        within = worths >= edge
        taken: Ints = among.compress(within)
        if taken.size <= ALIKE * several:
            return taken, among.compress(~within)
        return cut(among, worths, edge, several, self._ties)
