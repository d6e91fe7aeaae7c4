"""The next best hosts of one cell, to be named as alternates: each counts as fuller once it is named."""

from collections.abc import Collection
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from bus.vocabulary import Candidate

if TYPE_CHECKING:
    from scheduler_worker.core.ranking import Entry, Ranking


class Spares:
    """Beside the ranking: nothing is promised, and what is taken of the ranking moves here too."""

    def __init__(self, ranking: "Ranking", cell: str) -> None:
        self._ranking = ranking
        self._cell = cell
        self._sorted: list[Entry] = []  # those of the cell in the order of the beginning
        self._at = 0
        self._heap: list[Entry] = []
        self._named: dict[int, int] = {}
        self._fuller: dict[int, Entry] = {}  # the places of those that were named
        self._asked = ranking.wish.asked

    def take(self, several: int, beside: Collection[str], avoid: Collection[str]) -> tuple[Candidate, ...]:
        found: list[Entry] = []
        spares: list[Candidate] = []
        passed_over: list[Entry] = []
        while len(found) < several and (entry := self._next()) is not None:
            index = entry[-1]
            ranking = self._ranking
            if not ranking.admits(index):
                continue
            ways = ranking.ways(index, 1)
            if not ways:
                continue
            if ways[0].root in beside or not (ways := ranking.ways(index, 1, avoid) if avoid else ways):
                passed_over.append(entry)
            else:
                found.append(entry)
                spares.append(ways[0])
        for entry in passed_over:
            heappush(self._heap, entry)
        for entry, way in zip(found, spares, strict=True):
            self._name(entry, way)
        return tuple(spares)

    def moved(self, index: int) -> None:
        """It was chosen or put back."""
        now = self._ranking.moved_to(index)
        if now is None:
            return
        named = self._named.get(index)
        if named:
            less = named * self._ranking.one_more(index)
            now = self._fuller[index] = (now[0], now[1] + less, now[2] + named, now[3], index)
        heappush(self._heap, now)

    def _next(self) -> "Entry | None":
        while True:
            if self._at == len(self._sorted):
                self._sorted = self._ranking.of_cell(self._cell, self._at)
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
            now = self._fuller.get(entry[-1]) or self._ranking.moved_to(entry[-1]) or entry
            if now == entry:
                return entry

    def _name(self, entry: "Entry", way: Candidate) -> None:
        """From now on it counts as if it got what it was named for; where that is all it has, no more."""
        outside, worth, chosen, its_tie, index = entry
        self._named[index] = named = self._named.get(index, 0) + 1
        free = way.free
        for name, amount in self._asked.items():
            if name in free and free[name] < (named + 1) * amount:
                self._fuller[index] = _NOWHERE
                return
        one_more = self._ranking.one_more(index)
        self._fuller[index] = entry = (outside, worth + one_more, chosen + 1, its_tie, index)
        heappush(self._heap, entry)


_NOWHERE = (0, float("inf"), 0, 0, -1)
