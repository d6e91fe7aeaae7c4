"""The best first, of many, sorted no further than somebody looks."""

from collections.abc import Callable

import numpy as np

from bus.candidates import Floats, Ints
from scheduler_worker.core.ties import Uints

FIRST_PAGE = 64
GROWTH = 2  # each page is so many times as long as the one before
ALIKE = 4  # so many times a page is taken as it is, rather than cut among equals


def nth_best(worths: Floats, nth: int) -> float:
    """As much as so many are worth, or more."""
    return float(np.partition(worths, worths.size - nth)[worths.size - nth])


def cut(
    among: Ints, worths: Floats, edge: float, several: int, ties: Callable[[Ints], Uints]
) -> tuple[Ints, Ints]:
    """So many of the best, and the others, in no order: of those at the edge the ones with the least ties."""
    better, alike = among[worths > edge], among[worths == edge]
    wanted = several - better.size
    if wanted < alike.size:
        order = np.argpartition(ties(alike), wanted)
        alike = alike[order]
    best: Ints = np.concatenate((better, alike[:wanted]))
    return best, np.concatenate((alike[wanted:], among[worths < edge]))


class Frontier:
    """Indices into an array of worths, a page at a time: highest worth first, then least tie."""

    def __init__(self, worth: Floats, among: Ints, ties: Callable[[Ints], Uints]) -> None:
        self._worth = worth
        self._left = among
        self._ties = ties
        self._page = FIRST_PAGE

    def page(self) -> tuple[Ints, Uints]:
        """The next best, in order, with their ties; empty when all have been given."""
        page, self._page = self._page, self._page * GROWTH
        taken = self._left if self._left.size <= ALIKE * page else self._split(page)
        if taken is self._left:
            self._left = self._left[:0]
        ties = self._ties(taken)
        order = np.lexsort((ties, -self._worth[taken]))
        return taken[order], ties[order]

    def _split(self, page: int) -> Ints:
        """About so many of the best; of those that are alike at the edge no more than are needed."""
        left = self._left
        worth = self._worth[left]
        edge = nth_best(worth, page)
        within = worth >= edge
        taken: Ints = left[within]
        if taken.size <= ALIKE * page:
            self._left = left[~within]
            return taken
        best, self._left = cut(left, worth, edge, page, self._ties)
        return best
