"""Orders new requests: the one with the highest priority first, then that of the project with the smallest
share of what was evaluated recently, then the oldest.

The share of a project (`core/shares.py`) grows with each of its requests that is evaluated. A project that
had no requests begins at the smallest share of the projects that have some: the time without requests is
neither an advantage nor a disadvantage. Of the other projects, requests that are handled now do not count for
that: they are served while the project has requests, too. A project whose further requests are still being
read keeps its share. While two projects have requests of one priority, their shares differ by at most one
request of each, and what was handled when the later one began.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Any

from features.waiting.core.shares import QueueKey, Rank, Shares, Size, parts_of

SERVED_SECONDS = 60.0  # seconds after which an evaluated request counts 1/e (37 %)
MOST_IDLE = 1000  # projects without requests that are stored


@dataclass(slots=True, eq=False)
class FairItem:
    """A request in the queue, with an object of the caller (`value`)."""

    project: str
    key: QueueKey
    size: Size
    value: Any


@dataclass(slots=True, eq=False)
class _Project:
    items: list[tuple[QueueKey, int, FairItem]] = field(default_factory=list)
    rank: Rank | None = None  # the first request's
    # total size and number of its requests that are handled now
    handled: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: int = 0
    turn: float | None = None  # its turn in `FairQueue._turns`; None: it is not there

    @property
    def is_idle(self) -> bool:
        return not self.items and not self.calls


class FairQueue:
    """Requests of all projects; `pop` takes the next one. `time` returns the time in seconds."""

    def __init__(self, time: Callable[[], float] = lambda: 0.0) -> None:
        self.shares = Shares(SERVED_SECONDS)
        self._time = time
        self._projects: dict[str, _Project] = {}
        self._order: list[Rank] = []  # a heap of the ranks of the projects' first requests; some are outdated
        # A heap of the projects that have requests, by the turn without those that are handled now. A turn in
        # the heap may be earlier than the present one.
        self._turns: list[tuple[float, str]] = []
        self._most_known = MOST_IDLE  # projects in memory before those without requests are forgotten
        self._ranked = 0  # projects with requests in the queue
        self._ties = count()
        self._reached = float("-inf")  # turn of the project that was served last

    def count(self, project: str) -> int:
        """Return how many items of a project are queued."""
        known = self._projects.get(project)
        return 0 if known is None else len(known.items)

    def push(self, item: FairItem, *, continues: bool = False) -> None:
        """Add a request. With `continues`, its project had further requests elsewhere while it had none in
        this queue, so it keeps its share.
        """
        known = self._projects.get(item.project)
        is_new = known is None
        if known is None:
            self._forget_idle()
            known = self._projects[item.project] = _Project()
        if not known.items and (is_new or not continues):
            self.shares.begin(item.project, self._least(), self._time())
        heappush(known.items, (item.key, next(self._ties), item))
        if known.items[0][-1] is item:
            self._enqueue(item.project, known)

    @property
    def projects(self) -> int:
        """Return how many projects have requests in the queue."""
        return self._ranked

    @property
    def next_project(self) -> str | None:
        """Return the project of the request that `pop` returns; None if the queue is empty."""
        while self._order:
            rank = self._order[0]
            known = self._projects.get(rank.project)
            if known is not None and known.rank is rank:
                return rank.project
            heappop(self._order)
        return None

    def pop(self) -> FairItem | None:
        """Remove and return the next request, and add its size to the share of its project; None if empty."""
        project = self.next_project
        if project is None:
            return None
        known, rank = self._projects[project], heappop(self._order)
        *_, item = heappop(known.items)
        self._reached = max(self._reached, rank.turn)
        self.shares.give(project, item.size, 1, self._time())
        for name, part in parts_of(item.size).items():
            known.handled[name] += part
        known.calls += 1
        self._enqueue(project, known)
        return item

    def done(self, item: FairItem) -> None:
        """Record that a request which `pop` returned was handled."""
        if (known := self._projects.get(item.project)) is not None and known.calls:
            known.calls -= 1
            for name, part in parts_of(item.size).items():
                known.handled[name] -= part
            if not known.calls:
                known.handled.clear()  # without the rounding errors of the sums

    def _least(self) -> float:
        """Return the turn at which a project begins that had no requests."""
        now = self._time()
        while self._turns:
            turn, project = self._turns[0]
            known = self._projects.get(project)
            if known is None or known.turn != turn:  # the project has a later entry
                heappop(self._turns)
            elif known.is_idle:
                known.turn = None
                heappop(self._turns)
            elif (present := self._turn(project, known, now)) > turn:
                known.turn = present
                heapreplace(self._turns, (present, project))
            else:
                return min(turn, self._reached)
        return self._reached

    def _turn(self, project: str, known: _Project, now: float) -> float:
        """Return the turn of a project, without its requests that are handled now."""
        return self.shares.exact_turn(project, now, known.handled if known.calls else {})

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the weights of projects; "" is the weight of all projects not listed."""
        if self.shares.set_weights(weights):
            for project, known in self._projects.items():
                self._enqueue(project, known)

    def _enqueue(self, project: str, known: _Project) -> None:
        """Give a project the place of its first request, after this request or its turn has changed."""
        now = self._time()
        self._ranked -= known.rank is not None
        known.rank = None
        if known.items:
            priority, since, request = known.items[0][0]
            turn = self.shares.exact_turn(project, now)
            known.rank = Rank(priority, turn, since, request, project)
            heappush(self._order, known.rank)
            self._ranked += 1
        if not known.is_idle:
            turn = self._turn(project, known, now)
            if known.turn is None or turn < known.turn:
                known.turn = turn
                heappush(self._turns, (turn, project))

    def _forget_idle(self) -> None:
        if len(self._projects) > self._most_known:
            self._projects = {name: known for name, known in self._projects.items() if not known.is_idle}
            self._most_known = max(2 * len(self._projects), MOST_IDLE)
