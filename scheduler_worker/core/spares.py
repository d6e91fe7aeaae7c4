"""The next best hosts of one cell, to be named as alternates: each counts as fuller once it is named."""

from collections.abc import Collection
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from msgspec.structs import replace

from bus.vocabulary import Candidate
from scheduler_worker.core.frontier import Frontier

if TYPE_CHECKING:
    from scheduler_worker.core.ranking import Entry, Ranking


class Spares:
    """Beside the ranking: nothing is promised, and what is taken of the ranking moves here too."""

    def __init__(self, ranking: "Ranking", order: Frontier) -> None:
        self._ranking = ranking
        self._order = order
        self._front: list[Entry] = []  # a sorted page, the best last
        self._heap: list[Entry] = []
        self._named: dict[int, int] = {}
        self._fuller: dict[int, Entry] = {}  # the places of those that were named
        self._asked = ranking.wish.asked

    def take(self, several: int, beside: Collection[str], avoid: Collection[str]) -> tuple[Candidate, ...]:
        found: list[Entry] = []
        spares: list[Candidate] = []
        passed_over: list[Entry] = []
        while len(found) < several and (entry := self._next()) is not None:
            index = entry[3]
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
        for entry in found:
            self._name(entry[3])
        return tuple(spares)

    def moved(self, index: int) -> None:
        """It was chosen or put back."""
        now = self._ranking.moved_to(index)
        if index in self._named:
            self._weigh(index)
        elif now is not None:
            heappush(self._heap, now)

    def _next(self) -> "Entry | None":
        while True:
            if not self._front:
                self._front = self._ranking.entries(*self._order.page())
            heap = self._heap
            if heap and (not self._front or heap[0] <= self._front[-1]):
                entry = heappop(heap)
                while heap and heap[0] == entry:
                    heappop(heap)
            elif self._front:
                entry = self._front.pop()
            else:
                return None
            now = self._fuller.get(entry[3]) or self._ranking.moved_to(entry[3]) or entry
            if now == entry:
                return entry

    def _name(self, index: int) -> None:
        self._named[index] = self._named.get(index, 0) + 1
        self._weigh(index)

    def _weigh(self, index: int) -> None:
        """As if it had got all for which it was named; when that is more than it has room for, no more."""
        named = self._named[index]
        facts = self._ranking.facts(index)
        free = dict(facts.free)
        for name, amount in self._asked.items():
            if name in free:
                free[name] -= named * amount
                if free[name] < amount:
                    self._fuller[index] = _NOWHERE
                    return
        fuller = replace(facts, free=free, building=facts.building + named)
        now = self._ranking.moved_to(index)
        chosen = named if now is None else now[1] + named
        entry = self._fuller[index] = self._ranking.weighed(index, fuller, chosen, note=False)
        heappush(self._heap, entry)


_NOWHERE = (float("inf"), 0, 0, -1)
