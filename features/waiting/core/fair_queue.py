"""Orders the requests of several projects: the project with the smallest dominant share for its weight first,
and inside a project by priority, then age.

The share of a project grows with each of its requests that is served. The request's amount of each resource
class counts as a fraction of the cloud's capacity. The largest sum of a class, divided by the project's
weight, is the share. A project that had no requests begins at the smallest share of the projects that have
some: the time without requests is neither an advantage nor a disadvantage. Of the other projects, requests
that are handled now do not count for that: they are served while the project has requests, too. A project
whose further requests are still being read keeps its share. While two projects have requests, their shares
differ by at most one request of each, and what was handled when the later one began.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import exp
from typing import Any

from bus.messages import BuildRequested
from bus.requests import Flavor

Key = tuple[int, float, str]  # negative priority, time of arrival, id
Size = Mapping[str, float]  # resource class → fraction of the cloud's capacity

LEAST_SIZE = 1e-9  # minimum size of a request, also if no host has the requested resources
SERVED_SECONDS = 60.0  # seconds after which a served request counts 1/e (37 %)
FORGOTTEN_SECONDS = 300.0
PERIOD_SECONDS = 60.0  # minimum length of a period of `ShareMeter`
MOST_IDLE = 1000  # projects without requests whose shares are stored
_RESOURCES = re.compile(r"resources([^:]*):([A-Z0-9_]+)")


@dataclass(slots=True, eq=False)
class FairItem:
    """A request in the queue, with an object of the caller (`value`)."""

    project: str
    key: Key
    size: Size
    value: Any


@dataclass(slots=True, eq=False)
class _Project:
    weight: float
    served: dict[str, float] = field(default_factory=dict)
    offset: float = 0.0
    items: list[tuple[Key, int, FairItem]] = field(default_factory=list)
    handled: Counter[str] = field(default_factory=Counter)  # size of the requests that are handled now
    calls: int = 0  # number of the requests that are handled now

    @property
    def settled(self) -> float:
        """Return the progress without the requests that are handled now."""
        return self.progress - max(self.handled.values(), default=0.0) / self.weight

    @property
    def progress(self) -> float:
        return self.offset + max(self.served.values(), default=0.0) / self.weight

    def serve(self, size: Size) -> None:
        for name, fraction in _parts(size).items():
            self.served[name] = self.served.get(name, 0.0) + fraction

    def begin_at(self, progress: float) -> None:
        self.served.clear()
        self.offset = progress


def _parts(size: Size) -> dict[str, float]:
    return {name: max(fraction, LEAST_SIZE) for name, fraction in size.items()} or {"": LEAST_SIZE}


class FairQueue:
    """Requests of all projects; `pop` takes the next one. `weight_of` returns the weight of a project."""

    def __init__(self, weight_of: Callable[[str], float] = lambda project: 1.0) -> None:
        self._weight_of = weight_of
        self._projects: dict[str, _Project] = {}
        self._order: list[tuple[float, int, str]] = []  # a heap of projects: progress, tie-breaker, name
        self._ties = count()
        self._reached = 0.0  # progress of the project that was served last

    def count(self, project: str) -> int:
        known = self._projects.get(project)
        return 0 if known is None else len(known.items)

    def push(self, item: FairItem, *, continues: bool = False) -> None:
        """Add a request. With `continues`, its project had further requests elsewhere while it had none in
        this queue, so it keeps its share.
        """
        known = self._projects.get(item.project)
        if known is None:
            self._forget_idle()
            known = self._projects[item.project] = _Project(
                self._weight_of(item.project), offset=self._least()
            )
        if not known.items:
            if not continues and known.progress < (least := self._least()):
                known.begin_at(least)
            self._enqueue(item.project, known)
        heappush(known.items, (item.key, next(self._ties), item))

    @property
    def projects(self) -> int:
        """Return how many projects have requests in the queue."""
        return len(self._order)

    @property
    def next_project(self) -> str | None:
        """Return the project of the request that `pop` returns; None if the queue is empty."""
        return self._order[0][2] if self._order else None

    def pop(self) -> FairItem | None:
        """Remove and return the next request, and add its size to the share of its project; None if empty."""
        if self._order:
            progress, _, project = heappop(self._order)
            known = self._projects[project]
            *_, item = heappop(known.items)
            self._reached = max(self._reached, progress)
            known.serve(item.size)
            known.calls += 1
            known.handled.update(_parts(item.size))
            if known.items:
                self._enqueue(project, known)
            return item
        return None

    def done(self, item: FairItem) -> None:
        """Record that a request which `pop` returned was handled."""
        if (known := self._projects.get(item.project)) is not None and known.calls:
            known.calls -= 1
            known.handled.subtract(_parts(item.size))
            if not known.calls:
                known.handled.clear()  # without the rounding errors of the sums

    def _least(self) -> float:
        """Return the share at which a project begins that had no requests."""
        waiting = [self._order[0][0]] if self._order else []
        settled = [known.settled for known in self._projects.values() if known.calls]
        return min([*waiting, *settled, self._reached])

    def progress(self, projects: Iterable[str]) -> dict[str, float]:
        """Return the served share of each given project, divided by its weight. Only the growth of this
        number while the project has requests is comparable between projects.
        """
        return {name: self._projects[name].progress for name in projects if name in self._projects}

    def reweigh(self) -> None:
        """Read the weights of all projects again. A changed weight applies to requests served from now on:
        the share that the project has reached until now does not change.
        """
        for project, known in self._projects.items():
            weight = self._weight_of(project)
            if weight != known.weight:
                known.begin_at(known.progress)
                known.weight = weight

    def _enqueue(self, project: str, known: _Project) -> None:
        heappush(self._order, (known.progress, next(self._ties), project))

    def _forget_idle(self) -> None:
        if len(self._projects) - len(self._order) > MOST_IDLE:
            self._projects = {
                name: known for name, known in self._projects.items() if known.items or known.calls
            }


class RecentlyServed:
    """The total size of each project's recently served requests; a request counts less with every second."""

    def __init__(self) -> None:
        # project → its served size at a time, and this time
        self._served: dict[str, tuple[float, float]] = {}

    def add(self, project: str, size: Size, now: float) -> None:
        before, at = self._served.get(project, (0.0, now))
        grown = max(size.values(), default=0.0) or LEAST_SIZE
        self._served[project] = before * exp((at - now) / SERVED_SECONDS) + grown, now

    def sizes(self, now: float) -> dict[str, float]:
        """Return the recently served size by project; forget projects not served for FORGOTTEN_SECONDS."""
        self._served = {
            project: (size, at)
            for project, (size, at) in self._served.items()
            if now - at < FORGOTTEN_SECONDS
        }
        return {
            project: size * exp((at - now) / SERVED_SECONDS) for project, (size, at) in self._served.items()
        }


class ShareMeter:
    """Measures how far the served shares of projects differ from their weights, in periods of at least
    `PERIOD_SECONDS`. Only projects that had a backlog at each measurement of a period count.
    """

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._began = 0.0
        self.deviation = 0.0  # 0.05: a project was served 5 % more or less than its weight entitles it to

    def measure(self, progress: Mapping[str, float], now: float) -> None:
        """Add a measurement; `progress` (`FairQueue.progress`) has all projects with a backlog now. A period
        ends after PERIOD_SECONDS, or if fewer than two of its projects are left; then `deviation` is set.
        """
        self._before = {name: before for name, before in self._before.items() if name in progress}
        if len(self._before) >= 2 and now - self._began < PERIOD_SECONDS:
            return
        grown = [progress[name] - before for name, before in self._before.items()]
        mean = sum(grown) / len(grown) if len(grown) >= 2 else 0.0
        self.deviation = max(abs(each / mean - 1) for each in grown) if mean > 0 else 0.0
        self._before, self._began = dict(progress), now


def shares_of(served: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return each project's fraction of the total size that all schedulers have served. `served` has the
    sizes by project of each scheduler.
    """
    total: dict[str, float] = {}
    for sizes in served:
        for project, size in sizes.items():
            total[project] = total.get(project, 0.0) + size
    everything = sum(total.values())
    return {project: size / everything for project, size in total.items()} if everything else {}


def requested_amounts(request: BuildRequested) -> Counter[str]:
    """Return the amounts that all instances of a request need together, by resource class."""
    total = Counter[str]()
    sections = [(section.flavor, section.count) for section in request.parts.sections]
    for flavor, several in sections or [(request.flavor, len(request.instances))]:
        one = Counter(amounts_of(flavor))
        for group in request.groups:
            one.update(group.resources)
        for name, amount in one.items():
            total[name] += several * amount
    return total


def amounts_of(flavor: Flavor) -> dict[str, int]:
    """Return the amounts that an instance of a flavor needs, by resource class."""
    amounts = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.disk_gb}
    for name, text in flavor.extra_specs.items():
        found = _RESOURCES.fullmatch(name)
        if found is None or not text.isdecimal():
            continue
        suffix, resource_class = found.groups()
        amounts[resource_class] = int(text) + (amounts.get(resource_class, 0) if suffix else 0)
    return amounts
