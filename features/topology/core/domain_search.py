"""Searches exhaustively, within a number of steps, for hosts for several different instances together.

A greedy choice may miss an assignment that exists: a small instance can occupy the only host of a large one.
This search backtracks. It knows only the free amounts of hosts, so its result must still be claimed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HostAmount:
    """A host's data for the search: free amounts by resource class, and its domain of each spread level."""

    position: int
    free: tuple[int, ...]
    domains: tuple[int, ...]
    accepts: tuple[bool, ...]  # by part: whether all filters accept the host


@dataclass(frozen=True, slots=True)
class PartAmount:
    count: int
    asked: tuple[int, ...]


@dataclass(slots=True)
class Budget:
    """The number of search steps that a request has left; below 0, the search was cut short."""

    left: int

    def spend(self) -> bool:
        """Count a step of the search; return False when no step is left."""
        self.left -= 1
        return self.left >= 0


@dataclass(slots=True)
class Assignment:
    """A search for the hosts of all instances of a request's parts (its roles), with at most a given number
    of instances in each domain over which they must spread.
    """

    hosts: Sequence[HostAmount]
    parts: Sequence[PartAmount]  # parts that fit the fewest hosts first
    limits: Sequence[int]  # for each spread level: the most instances in one domain
    budget: Budget
    _free: list[list[int]] = field(default_factory=list)
    _there: list[dict[int, int]] = field(default_factory=list)

    def find(self, counts: Sequence[dict[int, int]]) -> list[tuple[int, int]] | None:
        """Return (part, index of a host) for each instance; None if no assignment is found within the budget.
        `counts` has, for each spread level, the number of instances already placed, by domain.
        """
        self._free = [list(host.free) for host in self.hosts]
        self._there = [dict(each) for each in counts]
        wanted = [number for number, part in enumerate(self.parts) for _ in range(part.count)]
        found: list[tuple[int, int]] = []
        return found if self._enough(wanted) and self._place(wanted, 0, 0, found) else None

    def _enough(self, wanted: Sequence[int]) -> bool:
        for class_ in range(len(self.parts[0].asked) if self.parts else 0):
            total = sum(self.parts[number].asked[class_] for number in wanted)
            if total > sum(max(free[class_], 0) for free in self._free):
                return False
        return True

    def _place(self, wanted: Sequence[int], at: int, first: int, found: list[tuple[int, int]]) -> bool:
        if at == len(wanted):
            return True
        part = wanted[at]
        tried: set[object] = set()
        # Instances of one part are alike: their hosts are tried in ascending order only.
        for index in range(first, len(self.hosts)):
            host = self.hosts[index]
            if not self.budget.spend():
                return False
            if not self._fits(part, index):
                continue
            alike = tuple(self._free[index]), host.domains, host.accepts
            if alike in tried:
                continue
            tried.add(alike)
            self._take(part, index, 1)
            found.append((part, index))
            again = at + 1 < len(wanted) and wanted[at + 1] == part
            if self._place(wanted, at + 1, index if again else 0, found):
                return True
            found.pop()
            self._take(part, index, -1)
        return False

    def _fits(self, part: int, index: int) -> bool:
        host = self.hosts[index]
        if not host.accepts[part]:
            return False
        if any(left < amount for left, amount in zip(self._free[index], self.parts[part].asked, strict=True)):
            return False
        counted = zip(self._there, host.domains, self.limits, strict=True)
        return all(there.get(domain, 0) < most for there, domain, most in counted)

    def _take(self, part: int, index: int, sign: int) -> None:
        free = self._free[index]
        for class_, amount in enumerate(self.parts[part].asked):
            free[class_] -= sign * amount
        for there, domain in zip(self._there, self.hosts[index].domains, strict=True):
            there[domain] = there.get(domain, 0) + sign
