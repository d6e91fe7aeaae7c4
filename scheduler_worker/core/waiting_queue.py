"""The queue of one equivalence class of waiting requests, and the data of hosts that the queues use."""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import takewhile
from typing import Protocol

from bus.vocabulary import Id
from scheduler_worker.core.fair_queue import Size
from scheduler_worker.core.reserved_hosts import Prospect, Root, Roots
from scheduler_worker.core.waiting_shares import QueueKey, Rank, WaitingShares

REMEMBERED = 20_000  # changes of hosts that are remembered for evaluations in progress


@dataclass(frozen=True, slots=True)
class CapacityNeeded:
    """The amount of a resource class that a host must have free to fit one flavor of a request. If
    `resource_class` is empty, no amount is required, and any host may fit.
    """

    resource_class: str = ""
    amount: int = 0


@dataclass(frozen=True, slots=True)
class HostsFound:
    """The hosts that fit requests of one equivalence class, and the hosts that only filters reject."""

    fits: Mapping[Root, int]  # root of a host → most instances that fit
    refused: Roots = ()  # hosts that fit, but that a filter rejects
    passing: bool = False  # whether a host is rejected for a temporary reason only
    more: bool = False  # the search stopped before all hosts were evaluated


@dataclass(slots=True, eq=False)
class ClassQueue:
    """The queue of one equivalence class: its waiting requests, and the hosts that may fit them."""

    kind: str
    project: str
    watches: Sequence[CapacityNeeded]
    needs: int  # number of instances of a request that must be placed together
    size: Size  # of each request, when a request of the class was last served
    shares: WaitingShares
    waiting: list[QueueKey] = field(default_factory=list)  # sorted; without requests being placed now
    trying: set[QueueKey] = field(default_factory=set)
    open: dict[Root, int] = field(default_factory=dict)  # fitting host → most instances that fit
    untested: dict[Root, None] = field(default_factory=dict)  # hosts to evaluate, because they changed
    refused: set[Root] = field(default_factory=set)  # hosts that fit, but that a filter rejects
    failed_roots: set[Root] = field(default_factory=set)  # unchanged hosts on which placing has failed
    swept: bool = False  # True if no change but only the periodic search of all hosts found the fitting hosts
    more: bool = False  # True if more hosts may fit: the search stopped when all waiting requests had one
    all_hosts: bool = False  # True if all hosts must be evaluated
    retry_at: float | None = None  # when all hosts are evaluated again even without a change

    @property
    def first(self) -> Rank:
        """Return the rank of the first request of the equivalence class, even if it is being placed now."""
        return self.rank(min([*self.trying, *self.waiting[:1]]) if self.trying else self.waiting[0])

    @property
    def next(self) -> Rank:
        """Return the rank of the first request that is not being placed now; at least one must be waiting."""
        return self.rank(self.waiting[0])

    def rank(self, key: QueueKey, share: float | None = None) -> Rank:
        """Return the rank of a request of the class, now or if its project had the given share."""
        priority, since, request = key
        return Rank(priority, self.shares.of(self.project) if share is None else share, since, request)

    def position(self, key: QueueKey) -> int:
        """Return how many requests of the class precede `key`, plus 1."""
        return bisect_left(self.waiting, key) + sum(tried < key for tried in self.trying) + 1

    def before(self, other: Rank, share: float) -> int:
        """Return how many waiting requests of the class precede `other`, a rank of another project, if the
        project's share is `share` now and increases with each of them; at least 1.
        """
        priority = self.waiting[0][0]
        if other.priority != priority:
            return max(bisect_left(self.waiting, (other.priority,)), 1)
        until = int((other.share - share) / self.shares.step(self.project, self.size)) + 1
        return max(min(until, bisect_left(self.waiting, (priority + 1,))), 1)

    @property
    def further(self) -> bool:
        """Return True if a new search is due: the last search stopped before all hosts were evaluated, and
        all hosts that it found were tried."""
        return self.more and not self.open and not self.trying

    def enough(self, roots: Roots, requests: int) -> list[Root]:
        """Return the first of the fitting hosts `roots`: as many as fit the given number of waiting
        `requests`.
        """
        capacity, found = 0, list[Root]()
        for root in roots:
            if capacity >= requests * self.needs:
                break
            capacity += self.open[root]
            found.append(root)
        return found

    @property
    def ready(self) -> bool:
        return bool(self.waiting) and bool(self.all_hosts or self.further or self.untested or self.open)


class Turns:
    """The order in which queues with fitting hosts place requests in one step. With several projects, a queue
    places at one turn only so many requests that its project's share passes that of the next project.
    """

    def __init__(self, ready: Sequence[ClassQueue]) -> None:
        self.shares: dict[str, float] = {}  # project → its share after the turns until now
        self._firsts: dict[str, Rank] = {}  # project → the rank of its next request
        self._turns = [(queue.next, queue.kind, queue) for queue in ready]
        heapify(self._turns)
        for rank, _, queue in self._turns:
            self.shares[queue.project] = rank.share
            self._firsts[queue.project] = min(rank, self._firsts.get(queue.project, rank))

    def next(self) -> ClassQueue | None:
        while self._turns:
            rank, kind, queue = self._turns[0]
            share = self.shares[queue.project]
            if rank.share != share:
                heapreplace(self._turns, (rank._replace(share=share), kind, queue))
                continue
            heappop(self._turns)
            return queue
        return None

    def limit(self, queue: ClassQueue) -> int:
        """Return how many requests of a queue precede those of other projects; at least 1."""
        others = [first for project, first in self._firsts.items() if project != queue.project]
        return queue.before(min(others), self.shares[queue.project]) if others else len(queue.waiting)

    def ranks(self, queue: ClassQueue, several: int) -> list[Rank]:
        """Return the ranks of the first requests of a queue, with the share of its project at this turn."""
        share = self.shares[queue.project]
        return [queue.rank(key, share) for key in queue.waiting[:several]]

    def on_taken(self, queue: ClassQueue, several: int) -> None:
        """Count the requests that a queue places at its turn, and give it a later turn if more may fit."""
        project = queue.project
        self.shares[project] += several * queue.shares.step(project, queue.size)
        if queue.waiting and queue.open:
            heappush(self._turns, (queue.next._replace(share=self.shares[project]), queue.kind, queue))
        left = [rank for rank, _, other in self._turns if other.project == project]
        if left:
            self._firsts[project] = min(left)._replace(share=self.shares[project])
        else:
            del self._firsts[project]


@dataclass(slots=True, eq=False)
class Trial:
    """The waiting requests of one equivalence class that are being placed now, on hosts found for them."""

    queue: ClassQueue
    roots: tuple[Root, ...]
    kept: tuple[Root, ...]  # hosts in `roots` closed to requests of other classes until the trial ends
    open: set[Id]
    placed: bool = False
    scheduled: bool = False  # whether a time for the next attempt is set


@dataclass(frozen=True, slots=True)
class NextRequest:
    """A waiting request to place now, because a host may fit it; and hosts that this request may not use."""

    request: Id
    excluded: frozenset[Root]
    forgotten: bool = False  # True if only the periodic search of all hosts found a host for the request


class HostData(Protocol):
    """The interface by which the waiting queues ask for hosts' free amounts and for the hosts that fit."""

    def free(self, root: Root) -> Mapping[str, int]:
        """Return a host's free amounts by resource class, or an empty mapping if no such host exists."""

    def watches(self, kind: str) -> Sequence[CapacityNeeded]:
        """Return, for each flavor of the equivalence class, an amount of one resource class that a host must
        have free to fit any request of the class.
        """

    def search(self, kind: str, among: Roots | None, excluding: Roots, enough: int) -> HostsFound:
        """Return which hosts in `among` (None: all) fit the equivalence class; stop at `enough` instances."""

    def prospect(self, kind: str) -> Prospect:
        """Return the hosts that would fit the equivalence class if empty, and the capacity each lacks now."""

    def size(self, kind: str) -> Size:
        """Return which fraction of the cloud's capacity a request of the equivalence class takes."""


class ChangeHistory:
    """The history of recent changes of hosts, for requests whose search began before the last changes."""

    def __init__(self) -> None:
        self.mark = 0  # number of changes of hosts so far
        self._recent: deque[tuple[int, Root]] = deque()
        self._forgotten = 0  # the number of the last change that is no longer remembered

    def remember(self, roots: Roots) -> None:
        for root in roots:
            self.mark += 1
            self._recent.append((self.mark, root))
        while len(self._recent) > REMEMBERED:
            self._forgotten, _ = self._recent.popleft()

    def since(self, mark: int) -> list[Root] | None:
        """Return the hosts changed since the change counter was `mark`; None if older changes are lost."""
        if mark < self._forgotten:
            return None
        return [root for _, root in takewhile(lambda change: change[0] > mark, reversed(self._recent))]

    def forget_all(self) -> None:
        """Record that all hosts may have changed, and delete the list of single changed hosts."""
        self.mark += 1
        self._recent.clear()
        self._forgotten = self.mark
