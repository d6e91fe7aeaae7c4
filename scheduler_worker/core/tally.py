"""Counts the hosts on which a changed request would fit, within a limit of searches and time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from bus.candidates import SenselessQuery
from bus.queries import Candidate
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.fitting import FoundHosts, capacities
from scheduler_worker.core.rule import Alternative

Late = Callable[[], bool]  # returns whether the time limit of the search has passed

MOST_SEARCHES = 240  # searches for one equivalence class of requests
_EXAMINED = 48  # hosts evaluated one by one for a change; if all fit, the remaining hosts count as fitting


@dataclass(frozen=True, slots=True)
class Found:
    """The number of hosts on which a changed request would fit; with `more`, a lower limit of this number."""

    hosts: int
    more: bool = False

    def __str__(self) -> str:
        least = "at least " if self.more else ""
        return f"{least}{self.hosts} host{'' if self.hosts == 1 else 's'}"


class Tally:
    """Counts the hosts that would fit after each suggested change, within a limit of searches and time."""

    def __init__(self, searches: int, late: Late = lambda: False, *, needed: int = 1) -> None:
        self.left = searches
        self.needed = needed
        self._late = late

    def another(self, searches: int) -> Self:
        """Return a tally with a limit of searches of its own, and the same limit of time."""
        return type(self)(searches, self._late, needed=self.needed)

    @property
    def spent(self) -> bool:
        """Return whether no search is left, by number or by time."""
        return self.left <= 0 or self._late()

    def count(self, alternative: Alternative, choosing: Choosing) -> Found:
        """Count the hosts on which the alternative fits, and how many instances of it."""
        hosts = self.find(alternative, choosing)
        return Found(0) if hosts is None else self.counted(hosts)

    def find(self, alternative: Alternative, choosing: Choosing) -> FoundHosts | None:
        """Return the hosts that fit the alternative; None if no search is left or the alternative cannot be
        evaluated.
        """
        if self.spent:
            return None
        self.left -= 1
        try:
            return choosing.find(alternative)
        except SenselessQuery:
            return None

    def counted(self, hosts: FoundHosts) -> Found:
        """Count found hosts; beyond a number of hosts or the time limit the count is an estimate."""
        passing, examined, fitting, instances = hosts.passing, 0, 0, 0
        for index in passing[:_EXAMINED].tolist():
            if examined and self._late():
                break
            examined += 1
            way = hosts.any_way(index)
            if way is not None:
                fitting += 1
                instances += _instances(hosts.alternative, way) if self.needed > 1 else 1
        if instances < self.needed:
            return Found(0)
        if fitting == min(passing.size, _EXAMINED):
            return Found(passing.size)
        return Found(fitting, more=passing.size > examined and fitting > 0)


def _instances(alternative: Alternative, way: Candidate) -> int:
    """Return how many instances fit on a host with this candidate."""
    several, most = capacities(alternative.asked, way.free), alternative.most_on(way.root)
    return several if most is None else min(several, most)
