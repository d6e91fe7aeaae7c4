"""Sorts the hosts of one ranking, best first, page by page: only as many hosts as are read.

A host with a changed weight is sorted in again; its earlier entries are outdated and skipped. If scores are
equal, a hash of the host decides.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from heapq import heappop, heappush

import numpy as np

from bus.candidates import Bools, Floats, Ints
from scheduler_worker.core.fitting import Entry
from scheduler_worker.core.host_hashes import Uints, ties
from scheduler_worker.core.host_map import HostMap

FIRST_PAGE = 64
GROWTH = 2  # each page has this many times the hosts of the page before
AHEAD = 8  # hosts of this many pages are separated from the rest at once, to search all hosts less often
ALIKE = 2  # hosts with equal scores extend a page to at most this many times its length
# Tiers: this scheduler's hosts, other schedulers' hosts, hosts without a heartbeat so far. A host is chosen
# only if no host of an earlier tier is left.
OUR_HOSTS, THEIR_HOSTS, UNKNOWN_HOSTS = range(3)
_NOBODY: Entry = (UNKNOWN_HOSTS + 1, 0.0, 0, 0, -1)  # sorts after all hosts


def best_value(worths: Floats, count: int) -> float:
    """Return the lowest score among the `count` hosts with the highest scores."""
    return float(np.partition(worths, worths.size - count)[worths.size - count])


class Frontier:
    """Sorts hosts by score and hash in pages, and only as many pages as are read."""

    def __init__(self, worth: Floats, among: Ints, ties: Callable[[Ints], Uints]) -> None:
        self._worth = worth
        self._near = among[:0]  # hosts that are better than all hosts in `_far`
        self._far = among
        self._ties = ties
        self._page = FIRST_PAGE

    def page(self) -> tuple[Ints, Uints]:
        """Return the next best hosts and the hashes that order equal scores; empty after the last page."""
        page, self._page = self._page, self._page * GROWTH
        if self._near.size < page and self._far.size:
            nearer, self._far = self._split(self._far, AHEAD * page)
            self._near = np.concatenate((self._near, nearer))
        taken, self._near = self._split(self._near, page)
        ties = self._ties(taken)
        order = np.lexsort((ties, -self._worth.take(taken)))
        return taken.take(order), ties.take(order)

    def _split(self, among: Ints, several: int) -> tuple[Ints, Ints]:
        """Divide hosts into the best ones, about `several`, and the others."""
        if among.size <= ALIKE * several:
            return among, among[:0]
        # If `among` has all hosts, they are in the order of `_worth`.
        worths = self._worth if among.size == self._worth.size else self._worth.take(among)
        edge = best_value(worths, several)
        within = worths >= edge
        taken: Ints = among.compress(within)
        if taken.size <= ALIKE * several:
            return taken, among.compress(~within)
        # Of the hosts with exactly the lowest score, those with the lowest hashes are taken.
        better, alike = among.compress(worths > edge), among.compress(worths == edge)
        wanted = several - better.size
        if wanted < alike.size:
            alike = alike[np.argpartition(self._ties(alike), wanted)]
        best: Ints = np.concatenate((better, alike[:wanted]))
        return best, np.concatenate((alike[wanted:], among.compress(worths < edge)))


class HostOrder:
    """The hosts of one evaluation, sorted best first, as indices into the search's arrays."""

    def __init__(
        self, seed: str, hosts: HostMap, positions: Ints, worths: Floats, tiers: Ints | None, admitted: Ints
    ) -> None:
        self.admitted = admitted  # indices of the hosts that all filters on arrays accept
        # No bound method: it would make a reference cycle, which only the garbage collector frees.
        self.ties = partial(_ties_of, seed, hosts, positions)
        self.moved: dict[int, Entry] = {}  # index of a host whose place changed → its new place
        self._hosts = hosts
        self._positions = positions
        self._worths = worths
        self._tiers = tiers
        # Each tier is sorted alone: an offset for the tier in the score would lose small differences of
        # floats.
        slices = [admitted]
        if tiers is not None:
            slices = [admitted[tiers[admitted] == tier] for tier in range(UNKNOWN_HOSTS + 1)]
        self._orders = [(tier, Frontier(worths, indices, self.ties)) for tier, indices in enumerate(slices)]
        self._sorted: list[Entry] = []  # hosts sorted so far, by their scores before any choice
        self._of_cell: dict[int, list[Entry]] = {}  # the same hosts by number of the cell
        self._at = 0  # number of hosts in `_sorted` that were returned
        self._left: list[Entry] = []  # hosts that were evaluated but not chosen, the best last
        self._heap: list[Entry] = []  # a heap of chosen or released hosts, with their present scores

    def tier(self, index: int) -> int:
        """Return the tier of a host: hosts of a lower tier are chosen first."""
        return OUR_HOSTS if self._tiers is None else self._tiers.item(index)

    @property
    def foremost(self) -> list[int]:
        """Return the indices of the hosts that were sorted so far, best first, by their scores before any
        choice.
        """
        return [entry[-1] for entry in self._sorted]

    def pop(self, *, only_examined: bool = False) -> Entry | None:
        """Remove and return the best host. `only_examined`: of those that were returned or moved before."""
        while True:
            if self._at == len(self._sorted):
                self._turn_page()
            heap, front, left = self._heap, self._sorted, self._left
            first = front[self._at] if self._at < len(front) and not only_examined else _NOBODY
            if left and left[-1] < first and not (heap and heap[0] <= left[-1]):
                entry = left.pop()
            elif heap and heap[0] < first:
                entry = heappop(heap)
                while heap and heap[0] == entry:  # the same entry was pushed twice
                    heappop(heap)
                while left and left[-1] == entry:
                    left.pop()
            elif first is not _NOBODY:
                entry = first
                self._at += 1
            else:
                return None
            if self.moved.get(entry[-1], entry) == entry:
                return entry

    def pop_left(self, several: int) -> list[Entry]:
        """Remove and return the best `several` hosts that `leave` stored, best first. Return an empty list if
        a host that is not stored ranks at least as high as the lowest of them.
        """
        left, heap = self._left, self._heap
        if not left or (heap and heap[0] <= left[-several:][0]):
            return []
        best = left[: -several - 1 : -1]
        del left[-several:]
        return best

    def leave(self, entries: Sequence[Entry]) -> None:
        """Store hosts that were evaluated but not chosen. `pop_left` returns them without running filters
        again, until `evaluate_again` is called.
        """
        self._left += entries
        self._left.sort(reverse=True)

    def evaluate_again(self) -> None:
        """Let the filters run again on evaluated but unused hosts, because the hosts may have changed."""
        self.push(self._left)
        self._left.clear()

    def push(self, entries: Collection[Entry]) -> None:
        """Return entries that were taken, so that they can be taken again."""
        for entry in entries:
            heappush(self._heap, entry)

    def move(self, entry: Entry) -> None:
        """Enter a host at another place, because its score has changed."""
        self.moved[entry[-1]] = entry
        heappush(self._heap, entry)

    def of_cell(self, cell: str, beyond: int) -> list[Entry]:
        """Return the hosts of a cell that are sorted so far, by their scores before any choice. More hosts
        are sorted until there are `beyond` + 1, or the cell has no more.
        """
        number = self._hosts.number(cell)
        while len(self._of_cell.get(number, ())) <= beyond and self._turn_page():
            pass
        return self._of_cell.get(number, [])

    def _turn_page(self) -> bool:
        """Sort the next page of hosts; return False if there is none."""
        (tier, order), *later = self._orders
        indices, its_ties = order.page()
        if not indices.size and later:
            self._orders = later
            return self._turn_page()
        several, worths = len(indices), (-self._worths[indices]).tolist()
        columns = [tier] * several, worths, [0] * several, its_ties.tolist(), indices.tolist()
        entries = list(zip(*columns, strict=True))
        self._sorted += entries
        of_cell = self._of_cell
        cells = self._hosts.cell_at[self._positions[indices]].tolist()
        for cell, entry in zip(cells, entries, strict=True):
            if cell in of_cell:
                of_cell[cell].append(entry)
            else:
                of_cell[cell] = [entry]
        return bool(entries)


def tiers_of(positions: Ints, ours: Bools | None, unknown: Bools | None) -> Ints | None:
    """Return each host's tier: first the hosts that this scheduler prefers, last hosts of unknown health.
    None: all hosts are of one tier.
    """
    tiers: Ints | None = None
    if ours is not None:
        tiers = np.where(ours[positions], OUR_HOSTS, THEIR_HOSTS)
    if unknown is not None:
        known = OUR_HOSTS if tiers is None else tiers
        tiers = np.where(unknown[positions], UNKNOWN_HOSTS, known)
    return tiers


def _ties_of(seed: str, hosts: HostMap, positions: Ints, indices: Ints) -> Uints:
    return ties(seed, hosts.mixed.take(positions.take(indices)))
