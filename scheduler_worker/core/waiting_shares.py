"""Orders the waiting requests of several projects by what each project was served recently.

The served size of a project counts as in `fair_queue`, but decreases: after REMEMBERED_SECONDS a served
request counts 1/e. All sizes decrease in the same proportion, so the order of projects changes only when one
of them is served. Therefore sizes are not decreased; instead, a later request counts exponentially more.
"""

from collections import Counter
from collections.abc import Mapping
from math import exp
from typing import NamedTuple

from bus.vocabulary import Id
from scheduler_worker.core.fair_queue import LEAST_SIZE, MOST_IDLE, ServedProject, Size

QueueKey = tuple[int, float, Id]  # negative priority, arrival, id: the lowest is the first of its project

REMEMBERED_SECONDS = 3600.0
LARGEST_EXPONENT = 100.0


class Rank(NamedTuple):
    """The place of a waiting request among those of all projects: the lowest rank is first."""

    priority: int  # negative: the highest priority is first
    share: float
    since: float
    request: Id

    @property
    def key(self) -> QueueKey:
        return self.priority, self.since, self.request


class Contender(NamedTuple):
    """The properties of a request that decide its rank, together with the share of its project."""

    project: str
    priority: int
    since: float

    def rank(self, share: float) -> Rank:
        return Rank(-self.priority, share, self.since, "")


class WaitingShares:
    """The size that each project was served, divided by its weight. Shares are comparable only with each
    other.
    """

    def __init__(self) -> None:
        self._weights: Mapping[str, float] = {}
        self._projects: dict[str, ServedProject] = {}
        self._shares: dict[str, float] = {}
        self._waiting = Counter[str]()  # waiting requests by project
        self._reached = 0.0  # the largest share at which a project was served
        self._began = 0.0
        self._growth = 1.0  # how much a served request counts now, compared with one at `_began`

    @property
    def projects(self) -> int:
        """Return how many projects have waiting requests."""
        return len(self._waiting)

    def of(self, project: str) -> float:
        return self._shares.get(project, 0.0)

    def step(self, project: str, size: Size) -> float:
        """Return by how much a served request of this size increases the project's share now."""
        largest = max(size.values(), default=0.0)
        return max(largest, LEAST_SIZE) * self._growth / self._weight_of(project)

    def of_new(self, project: str) -> float:
        """Return the share with which a new request of a project is ordered. A project without waiting
        requests begins at the share of the project that was served last: the time without requests is neither
        an advantage nor a disadvantage.
        """
        own = self.of(project)
        return own if self._waiting[project] else max(own, self._reached)

    def enter(self, project: str) -> None:
        """Count a request that begins to wait."""
        share = self.of_new(project)
        self._waiting[project] += 1
        if share > self.of(project):
            self._known(project).begin_at(share)
            self._shares[project] = share

    def leave(self, project: str) -> None:
        self._waiting[project] -= 1
        if not self._waiting[project]:
            del self._waiting[project]

    def serve(self, project: str, size: Size, now: float) -> None:
        """Add a request that got hosts to the share of its project."""
        self._advance(now)
        self._reached = max(self._reached, self.of(project))
        known = self._known(project)
        known.serve({name: max(part, LEAST_SIZE) * self._growth for name, part in size.items()})
        self._shares[project] = known.progress

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the weights of projects; "" is the weight of all projects not listed."""
        if weights != self._weights:
            self._weights = weights
            for project, known in self._projects.items():
                known.reweigh(self._weight_of(project))

    def _weight_of(self, project: str) -> float:
        return self._weights.get(project, self._weights.get("", 1.0))

    def _known(self, project: str) -> ServedProject:
        known = self._projects.get(project)
        if known is None:
            if len(self._projects) > len(self._waiting) + MOST_IDLE:
                for idle in self._projects.keys() - self._waiting.keys():
                    del self._projects[idle]
                    self._shares.pop(idle, None)
            known = self._projects[project] = ServedProject(self._weight_of(project))
        return known

    def _advance(self, now: float) -> None:
        if not self._projects:
            self._began = now
        exponent = (now - self._began) / REMEMBERED_SECONDS
        if exponent > LARGEST_EXPONENT:
            self._projects.clear()
            self._shares.clear()
            self._began, self._reached, exponent = now, 0.0, 0.0
        self._growth = exp(exponent)
