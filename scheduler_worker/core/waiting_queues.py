"""Requests that wait for capacity: their order, and which change could help which request.

Requests of one equivalence class wait in one queue, the highest priority and then the oldest first. Each
queue watches one amount that a host must have free before any of its requests can fit; a change at a host
concerns only queues whose amount is free there. A fitting host goes to the first request of all queues that
it fits, for as many of that queue as it has capacity, then to the next.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from operator import attrgetter

from bus.vocabulary import Id
from scheduler_worker.core.waiting_queue import (
    ChangedHosts,
    HostData,
    HostReservation,
    Line,
    QueueKey,
    Root,
    Roots,
    Trial,
    Turn,
    Waiter,
    reservations,
)

_key = attrgetter("key")
TOO_MANY = 2_000  # changes in one step; beyond that every queue evaluates all hosts
RETRY_SECONDS = 1.0  # seconds, where something stands in the way that passes by itself


class WaitingQueues:
    """All waiting requests of this process, in queues. The caller passes the time; nothing is awaited."""

    def __init__(self, eyes: HostData) -> None:
        self._hosts_data = eyes
        self.waiters: dict[Id, Waiter] = {}
        self._lines: dict[str, Line] = {}
        self._watchers: dict[str, list[tuple[int, str]]] = {}  # class → amount and kind, in that order
        self._trials: dict[Id, Trial] = {}
        self._changes = ChangedHosts()
        self.reserved: dict[Root, HostReservation] = {}  # for the first requests of this process
        self.reserved_elsewhere: dict[Root, QueueKey] = {}
        self._shuffled = False  # reserved hosts are to be computed again
        self.searches = 0  # number of evaluations

    # Waiting requests

    def __len__(self) -> int:
        return len(self.waiters)

    def __contains__(self, request: Id) -> bool:
        return request in self.waiters

    @property
    def mark(self) -> int:
        """Return a mark for the changes of hosts that an evaluation which begins now includes."""
        return self._changes.mark

    def enter(self, waiter: Waiter, mark: int | None = None) -> None:
        """Add a request that found no host in an evaluation with this mark (None: it was not evaluated)."""
        if waiter.request in self.waiters:
            return
        line = self._lines.get(waiter.kind)
        if line is None:
            watches = self._hosts_data.watches(waiter.kind)  # if this raises, nothing has been added
            line = self._lines[waiter.kind] = Line(waiter.kind, watches)
            for watch in line.watches:
                insort(self._watchers.setdefault(watch.resource_class, []), (watch.amount, line.kind))
            line.whole = True  # a search of all hosts shows whether only a filter is in the way
        self.waiters[waiter.request] = waiter
        self._enqueue(line, waiter)
        missed = None if mark is None else self._changes.since(mark)
        if missed is None:
            line.whole = True
        else:
            line.untested.update(dict.fromkeys(missed))

    def leave(self, request: Id) -> bool:
        """Remove a request that has its host or has ended; return False if it did not wait."""
        waiter = self.waiters.pop(request, None)
        if waiter is None:
            return False
        line = self._lines[waiter.kind]
        if line.trying.pop(request, None) is not None:
            self._tried(request, placed=True)
        else:
            del line.waiting[bisect_left(line.waiting, waiter.key, key=_key)]
        self._shuffled = True
        if not line.waiting and not line.trying:
            del self._lines[line.kind]
            for watch in line.watches:
                self._watchers[watch.resource_class].remove((watch.amount, line.kind))
            self._recheck(line.open)
        return True

    def ahead(self, kind: str, priority: int, since: float) -> bool:
        """Return whether a request of the class waits before this priority and time."""
        line = self._lines.get(kind)
        return line is not None and line.first.key < (-priority, since, "")

    def first(self, kind: str) -> Waiter | None:
        line = self._lines.get(kind)
        return None if line is None else line.first

    def barred(self, priority: int, since: float) -> frozenset[Root]:
        """Return the hosts that a new request may not use: reserved for or given to earlier requests."""
        if not self._lines and not self.reserved_elsewhere:
            return frozenset()
        return self._barred((-priority, since, ""), "")

    def due(self, now: float) -> list[Waiter]:
        expired = [waiter for waiter in self.waiters.values() if waiter.until <= now]
        return [waiter for waiter in expired if waiter.request not in self._trials]

    def changed(self, roots: Roots) -> None:
        """Handle hosts with possibly more free capacity, or other traits, inventories or aggregates."""
        self._note(roots, self._changes.capacity)

    def reported(self, roots: Roots) -> None:
        self._note(roots, self._changes.reports)

    def _note(self, roots: Roots, changes: dict[Root, None]) -> None:
        if len(roots) > TOO_MANY:
            self.everything()
            return
        self._changes.remember(roots)
        if self._lines:
            changes.update(dict.fromkeys(roots))

    def on_agent_returned(self) -> None:
        """Handle the return of an agent: all its hosts may fit now."""
        for line in self._lines.values():
            line.untested.update(dict.fromkeys(line.refused))

    def release(self, roots: Roots) -> None:
        """Handle released reservations on hosts that did not change otherwise."""
        if self._lines:
            self._recheck(roots)

    def on_related_hosts_changed(self, kind: str) -> None:
        """Handle a change of the hosts of related instances: any host may fit now."""
        if kind in self._lines:
            self._lines[kind].whole = True

    def everything(self) -> None:
        """Evaluate all waiting requests again, because any host may have changed."""
        self._changes.forget_all()
        for line in self._lines.values():
            line.whole = True
        self._shuffled = True

    def reserve_elsewhere(self, reserved: Mapping[Root, QueueKey]) -> None:
        """Set the hosts that other schedulers have reserved for their waiting requests."""
        before, self.reserved_elsewhere = self.reserved_elsewhere, dict(reserved)
        self._recheck([root for root, key in before.items() if root not in reserved or reserved[root] > key])

    # The next requests

    @property
    def has_work(self) -> bool:
        """Return whether there is work: a host to evaluate or a request to place."""
        changed = self._changes.any or self._shuffled
        return bool(self._lines) and (changed or any(line.ready for line in self._lines.values()))

    def next_retry(self) -> float | None:
        return min(
            (line.retry_at for line in self._lines.values() if line.retry_at is not None), default=None
        )

    def next_requests(self, now: float, most: int = 128) -> list[Turn]:
        """Return the requests to place now; they count as being placed until they leave or come `back`."""
        self.settle(now)
        given: set[Root] = {root for trial in set(self._trials.values()) for root in trial.roots}
        found: list[Turn] = []
        ready = [line for line in self._lines.values() if line.waiting and line.open]
        for line in sorted(ready, key=lambda line: line.waiting[0].key):
            roots = [root for root in line.open if root not in given]
            given.update(roots)
            capacity = sum(line.open[root] for root in roots)
            several = min(max(capacity // line.waiting[0].needs, 1), len(line.waiting), most - len(found))
            if not roots or several <= 0:
                continue
            called = line.waiting[:several]
            barred = [self._barred(waiter.key, line.kind) for waiter in called]
            trial = Trial(line, tuple(roots), {waiter.request for waiter in called})
            del line.waiting[:several]
            for root in roots:
                del line.open[root]
            for waiter, excluded in zip(called, barred, strict=True):
                line.trying[waiter.request] = waiter
                self._trials[waiter.request] = trial
                found.append(Turn(waiter, excluded, line.swept))
            line.swept = False
        return found

    def requeue(self, request: Id, look_at: float | None = None) -> None:
        """Return a request that got no host to its queue; `look_at` is the time of its next retry."""
        waiter = self.waiters.get(request)
        if waiter is None:
            return
        line = self._lines[waiter.kind]
        if line.trying.pop(request, None) is not None:
            self._enqueue(line, waiter)
        self._tried(request, placed=False)
        if look_at is not None:
            line.retry_at = look_at if line.retry_at is None else min(line.retry_at, look_at)

    def settle(self, now: float) -> None:
        """Evaluate the changed hosts for the queues whose requests may fit there now."""
        self._distribute_changes()
        if self._shuffled:
            self._shuffled = False
            firsts = sorted([line.first for line in self._lines.values()], key=_key)
            before, self.reserved = (
                self.reserved,
                reservations(firsts, self._hosts_data.prospect, self.reserved),
            )
            reserved = self.reserved
            self._recheck(
                [root for root in before if root not in reserved or reserved[root].key > before[root].key]
            )
            self._distribute_changes()
        for line in self._lines.values():
            if line.retry_at is not None and line.retry_at <= now:
                # also if all are on trial: the retry is no longer scheduled
                line.whole, line.retry_at = True, None
            if not line.waiting:
                continue  # continues after the trials
            if line.whole or line.untested:
                self._evaluate(line, now, whole=line.whole)
            if line.open:
                for root in self._reserved_before(line.waiting[0].key, line.kind) & line.open.keys():
                    del line.open[root]  # found before the host was reserved for another request
            if line.further:  # beyond the hosts that were tried without success
                line.more = False
                self._search(line, now, None)

    def sweep(self, now: float) -> None:
        """Evaluate every waiting request; a success means that the rules for waking missed the request."""
        self.settle(now)
        busy = {root for trial in set(self._trials.values()) for root in trial.roots}
        for line in self._lines.values():
            if line.waiting and not line.open and line.retry_at is None:
                failed_roots = set(line.failed_roots)
                self._evaluate(line, now, whole=True)
                line.failed_roots = failed_roots - line.open.keys()
                line.swept = line.retry_at is None and not line.open.keys() <= busy

    # How a change finds its lines

    def _recheck(self, roots: Roots) -> None:
        """Evaluate again the hosts that are no longer excluded, although they did not change."""
        self._changes.remember(roots)
        self._changes.released.update(dict.fromkeys(roots))

    def _distribute_changes(self) -> None:
        capacity, reports, released = self._changes.take()
        for root in capacity:
            for line in self._concerned(root):
                line.untested[root] = None
                line.failed_roots.discard(root)
            if root in self.reserved:
                self._shuffled = True
        for root in released:
            for line in self._concerned(root):
                if root not in line.failed_roots:
                    line.untested[root] = None
        for root in reports:
            for line in self._lines.values():
                if root in line.refused or root in line.failed_roots:
                    line.untested[root] = None
                    line.failed_roots.discard(root)

    def _concerned(self, root: Root) -> Iterator[Line]:
        free = self._hosts_data.free(root)
        seen: set[str] = set()
        for resource_class in (*free, ""):
            for amount, kind in self._watchers.get(resource_class, ()):
                if resource_class and amount > free[resource_class]:
                    break
                if kind not in seen:
                    seen.add(kind)
                    yield self._lines[kind]

    def _evaluate(self, line: Line, now: float, *, whole: bool) -> None:
        """Evaluate all hosts, or only the changed hosts, for a queue."""
        changed, line.untested = line.untested, {}
        if whole:
            line.whole, line.more, line.retry_at = False, False, None
            closed, line.open = list(line.open), {}
            line.refused.clear()
            line.failed_roots.clear()
        else:
            closed = [root for root in changed if line.open.pop(root, 0)]
            line.refused.difference_update(changed)
        self._search(line, now, None if whole else changed)
        self._recheck([root for root in closed if root not in line.open])

    def _search(self, line: Line, now: float, among: Roots | None) -> None:
        self.searches += 1
        line.swept = False
        excluded = self._reserved_before(line.waiting[0].key, line.kind) | line.failed_roots
        enough = len(line.waiting) * line.waiting[0].needs
        found = self._hosts_data.search(line.kind, among, excluded, enough)
        line.open.update(found.fits)
        line.refused.update(found.refused)
        line.more = line.more or found.more
        if found.passing and line.retry_at is None:
            line.retry_at = now + RETRY_SECONDS

    def _enqueue(self, line: Line, waiter: Waiter) -> None:
        insort(line.waiting, waiter, key=_key)
        self._shuffled = True

    def _tried(self, request: Id, *, placed: bool) -> None:
        """Record whether a request was placed; after a queue's last one, release its reserved capacity."""
        trial = self._trials.pop(request, None)
        if trial is None:
            return
        trial.open.discard(request)
        trial.placed = trial.placed or placed
        if not trial.open:
            if not trial.placed:
                trial.line.failed_roots.update(trial.roots)
            self._recheck(trial.roots)

    def _reserved_before(self, key: QueueKey, kind: str) -> set[Root]:
        roots = {root for root, first in self.reserved_elsewhere.items() if first < key}
        roots.update(root for root, roots in self.reserved.items() if roots.key < key and roots.kind != kind)
        return roots

    def _barred(self, key: QueueKey, kind: str) -> frozenset[Root]:
        barred = self._reserved_before(key, kind)
        for line in self._lines.values():
            if line.kind != kind and line.waiting and line.waiting[0].key < key:
                barred.update(line.open)
        for trial in set(self._trials.values()):
            if trial.line.kind != kind:
                barred.update(trial.roots)
        return frozenset(barred)
