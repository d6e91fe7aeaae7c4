"""Queues requests that wait for capacity, and finds the requests that a change of a host may help.

Requests of one equivalence class wait in one queue, the highest priority and then the oldest first. Each
queue watches an amount that a host must have free before any of its requests can fit; a change of a host
concerns a queue only if its amount is free there. If a host fits several queues, the queue whose first
request has priority gets as many instances there as fit, then the next queue.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping

from bus.vocabulary import Id
from scheduler_worker.core.waiting_queue import (
    ChangeHistory,
    ClassQueue,
    HostData,
    HostReservation,
    NextRequest,
    QueueKey,
    Root,
    Roots,
    Trial,
    reservations,
)

TOO_MANY = 2_000  # with more changes of hosts in one step, every queue evaluates all hosts
RETRY_SECONDS = 1.0  # seconds before a retry if a host is rejected for a temporary reason only


class WaitingQueues:
    """All waiting requests of this scheduler in queues. Callers pass the time; no method awaits."""

    def __init__(self, hosts: HostData) -> None:
        self._hosts = hosts
        self._waiting: dict[Id, tuple[ClassQueue, QueueKey]] = {}
        self._queues: dict[str, ClassQueue] = {}
        self._watchers: dict[str, list[tuple[int, str]]] = {}  # resource class → (amount, class), sorted
        self._trials: dict[Id, Trial] = {}
        self._changes = ChangeHistory()
        # Three sets of hosts to evaluate again for waiting requests:
        self._capacity: dict[Root, None] = {}  # hosts that may have more free capacity
        self._reports: dict[Root, None] = {}  # hosts with a changed report
        self._released: dict[Root, None] = {}  # unchanged hosts that no request occupies or reserves any more
        self.reserved: dict[Root, HostReservation] = {}  # reserved for the first request of a queue
        self.reserved_elsewhere: dict[Root, QueueKey] = {}
        self._shuffled = False  # True if the reserved hosts must be computed again

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request: Id) -> bool:
        return request in self._waiting

    @property
    def mark(self) -> int:
        """Return the number of host changes so far; if it is larger later, hosts have changed in between."""
        return self._changes.mark

    def enter(self, key: QueueKey, kind: str, needs: int, mark: int | None = None) -> None:
        """Queue a request that found no host. The next search for it covers the hosts that changed after
        `mark`, the count of host changes when the last search began; None: all hosts.
        """
        *_, request = key
        if request in self._waiting:
            return
        queue = self._queues.get(kind)
        if queue is None:
            watches = self._hosts.watches(kind)  # called first: if it raises, nothing was changed
            queue = self._queues[kind] = ClassQueue(kind, watches, needs)
            for watch in queue.watches:
                insort(self._watchers.setdefault(watch.resource_class, []), (watch.amount, queue.kind))
            queue.all_hosts = True  # only a search of all hosts shows which hosts only a filter rejects
        self._waiting[request] = queue, key
        self._enqueue(queue, key)
        missed = None if mark is None else self._changes.since(mark)
        if missed is None:
            queue.all_hosts = True
        else:
            queue.untested.update(dict.fromkeys(missed))

    def leave(self, request: Id) -> None:
        """Remove from its queue a waiting request that was placed or has ended."""
        if request not in self._waiting:
            return
        queue, key = self._waiting.pop(request)
        if key in queue.trying:
            queue.trying.remove(key)
            self._end_trial(request, placed=True)
        else:
            del queue.waiting[bisect_left(queue.waiting, key)]
        self._shuffled = True
        if not queue.waiting and not queue.trying:
            del self._queues[queue.kind]
            for watch in queue.watches:
                self._watchers[watch.resource_class].remove((watch.amount, queue.kind))
            self._recheck(queue.open)

    def ahead(self, kind: str, priority: int, since: float) -> bool:
        """Return whether a waiting request of the class precedes a request with this priority and age."""
        queue = self._queues.get(kind)
        return queue is not None and queue.first < (-priority, since, "")

    def first(self, kind: str) -> Id | None:
        queue = self._queues.get(kind)
        return None if queue is None else queue.first[-1]

    def place(self, request: Id) -> tuple[int, str]:
        """Return a waiting request's position in its class, from 1, and the resource classes it waits for."""
        queue, key = self._waiting[request]
        return queue.position(key), " ".join(sorted({watch.resource_class for watch in queue.watches}))

    def place_of_new(self, kind: str, priority: int, since: float) -> int:
        """Return the position that a new request would have in its equivalence class, from 1."""
        queue = self._queues.get(kind)
        return 1 if queue is None else queue.position((-priority, since, ""))

    def barred(self, priority: int, since: float) -> frozenset[Root]:
        """Return the hosts that a new request may not use, because earlier requests need them."""
        if not self._queues and not self.reserved_elsewhere:
            return frozenset()
        return self._barred((-priority, since, ""), "")

    def is_tried(self, request: Id) -> bool:
        """Return whether the waiting request with this id is being placed now."""
        return request in self._trials

    def changed(self, roots: Roots) -> None:
        """Let waiting requests try the given hosts, whose capacity, traits or aggregates have changed."""
        self._note(roots, self._capacity)

    def reported(self, roots: Roots) -> None:
        self._note(roots, self._reports)

    def _note(self, roots: Roots, changes: dict[Root, None]) -> None:
        if len(roots) > TOO_MANY:
            self.everything()
            return
        self._changes.remember(roots)
        if self._queues:
            changes.update(dict.fromkeys(roots))

    def on_agent_returned(self) -> None:
        """Evaluate hosts again that filters rejected, because an agent sends heartbeats again."""
        for queue in self._queues.values():
            queue.untested.update(dict.fromkeys(queue.refused))

    def release(self, roots: Roots) -> None:
        """Let waiting requests try hosts where capacity reserved for a choice has been released."""
        if self._queues:
            self._recheck(roots)

    def on_related_hosts_changed(self, kind: str) -> None:
        """Try all hosts again for a class, because an instance that its scheduler hints name has moved."""
        if kind in self._queues:
            self._queues[kind].all_hosts = True

    def everything(self) -> None:
        """Let all waiting requests try all hosts again, because any host may have changed."""
        self._changes.forget_all()
        for queue in self._queues.values():
            queue.all_hosts = True
        self._shuffled = True

    def reserve_elsewhere(self, reserved: Mapping[Root, QueueKey]) -> None:
        """Set the hosts that other schedulers have reserved for their waiting requests."""
        before, self.reserved_elsewhere = self.reserved_elsewhere, dict(reserved)
        self._recheck([root for root, key in before.items() if root not in reserved or reserved[root] > key])

    @property
    def has_work(self) -> bool:
        """Return whether any changed host must be evaluated, or any waiting request can be placed."""
        changed = self._capacity or self._reports or self._released or self._shuffled
        return bool(self._queues) and bool(changed or any(queue.ready for queue in self._queues.values()))

    def next_retry(self) -> float | None:
        retries = [queue.retry_at for queue in self._queues.values() if queue.retry_at is not None]
        return min(retries, default=None)

    def next_requests(self, now: float, most: int = 128) -> list[NextRequest]:
        """Return waiting requests to place now; each counts as being placed until `leave` or `requeue`."""
        self.settle(now)
        given: set[Root] = {root for trial in set(self._trials.values()) for root in trial.kept}
        found: list[NextRequest] = []
        ready = [queue for queue in self._queues.values() if queue.waiting and queue.open]
        for queue in sorted(ready, key=lambda queue: queue.waiting[0]):
            roots = [root for root in queue.open if root not in given]
            capacity = sum(queue.open[root] for root in roots)
            several = min(max(capacity // queue.needs, 1), len(queue.waiting), most - len(found))
            if not roots or several <= 0:
                continue
            chosen = queue.waiting[:several]
            barred = [self._barred(key, queue.kind) for key in chosen]
            kept = queue.enough(roots, len(queue.waiting))
            given.update(kept)
            trial = Trial(queue, tuple(roots), tuple(kept), {request for *_, request in chosen})
            del queue.waiting[:several]
            for root in roots:
                del queue.open[root]
            queue.trying.update(chosen)
            for (*_, request), excluded in zip(chosen, barred, strict=True):
                self._trials[request] = trial
                found.append(NextRequest(request, excluded, queue.swept))
            queue.swept = False
        return found

    def requeue(self, request: Id, retry_at: float | None = None) -> None:
        """Put a request that was tried without success back into its queue. It is retried at `retry_at`
        (None: at no set time), or earlier after a change that it waits for.
        """
        if request not in self._waiting:
            return
        queue, key = self._waiting[request]
        if key in queue.trying:
            queue.trying.remove(key)
            self._enqueue(queue, key)
        self._end_trial(request, placed=False, scheduled=retry_at is not None)
        if retry_at is not None:
            queue.retry_at = retry_at if queue.retry_at is None else min(queue.retry_at, retry_at)

    def settle(self, now: float) -> None:
        """Evaluate each changed host for the queues with waiting requests that may fit on it."""
        self._distribute_changes()
        if self._shuffled:
            self._shuffled = False
            queues = sorted(self._queues.values(), key=lambda queue: queue.first)
            before = self.reserved
            reserved = self.reserved = reservations(queues, self._hosts.prospect, before)
            left = [root for root in before if root not in reserved or before[root].key < reserved[root].key]
            self._recheck(left)
            self._distribute_changes()
        for queue in self._queues.values():
            if queue.retry_at is not None and queue.retry_at <= now:
                # Also if all requests are being placed, so that the retry is not lost.
                queue.all_hosts, queue.retry_at = True, None
            if not queue.waiting:
                continue  # all requests of the queue are being placed
            if queue.all_hosts or queue.untested:
                self._evaluate(queue, now, all_hosts=queue.all_hosts)
            if queue.open:
                for root in self._reserved_before(queue.waiting[0], queue.kind) & queue.open.keys():
                    del queue.open[root]  # the host was found before it was reserved for another request
            if queue.further:  # all found hosts were tried, so search for further hosts
                queue.more = False
                self._search(queue, now, None)

    def sweep(self, now: float) -> None:
        """Evaluate all hosts for every waiting request, in case a change of a host was missed."""
        self.settle(now)
        busy = {root for trial in set(self._trials.values()) for root in trial.roots}
        for queue in self._queues.values():
            if queue.waiting and not queue.open and queue.retry_at is None:
                failed_roots = set(queue.failed_roots)
                self._evaluate(queue, now, all_hosts=True)
                queue.failed_roots = failed_roots - queue.open.keys()
                queue.swept = queue.retry_at is None and not queue.open.keys() <= busy

    def _recheck(self, roots: Roots) -> None:
        """Let waiting requests try hosts again, because a request no longer occupies or reserves them."""
        self._changes.remember(roots)
        self._released.update(dict.fromkeys(roots))

    def _distribute_changes(self) -> None:
        capacity, reports, released = self._capacity, self._reports, self._released
        self._capacity, self._reports, self._released = {}, {}, {}
        for root in capacity:
            for queue in self._concerned(root):
                queue.untested[root] = None
                queue.failed_roots.discard(root)
            if root in self.reserved:
                self._shuffled = True
        for root in released:
            for queue in self._concerned(root):
                if root not in queue.failed_roots:
                    queue.untested[root] = None
        for root in reports:
            for queue in self._queues.values():
                if root in queue.refused or root in queue.failed_roots:
                    queue.untested[root] = None
                    queue.failed_roots.discard(root)

    def _concerned(self, root: Root) -> Iterator[ClassQueue]:
        free = self._hosts.free(root)
        seen: set[str] = set()
        for resource_class in (*free, ""):
            for amount, kind in self._watchers.get(resource_class, ()):
                if resource_class and amount > free[resource_class]:
                    break
                if kind not in seen:
                    seen.add(kind)
                    yield self._queues[kind]

    def _evaluate(self, queue: ClassQueue, now: float, *, all_hosts: bool) -> None:
        """Find hosts for the waiting requests of one queue, among the hosts that changed since the last
        evaluation for this queue or, with `all_hosts`, among all hosts."""
        changed, queue.untested = queue.untested, {}
        if all_hosts:
            queue.all_hosts, queue.more, queue.retry_at = False, False, None
            closed, queue.open = list(queue.open), {}
            queue.refused.clear()
            queue.failed_roots.clear()
        else:
            closed = [root for root in changed if queue.open.pop(root, 0)]
            queue.refused.difference_update(changed)
        self._search(queue, now, None if all_hosts else changed)
        self._recheck([root for root in closed if root not in queue.open])

    def _search(self, queue: ClassQueue, now: float, among: Roots | None) -> None:
        queue.swept = False
        excluded = self._reserved_before(queue.waiting[0], queue.kind) | queue.failed_roots
        enough = len(queue.waiting) * queue.needs
        found = self._hosts.search(queue.kind, among, excluded, enough)
        queue.open.update(found.fits)
        queue.refused.update(found.refused)
        queue.more = queue.more or found.more
        if found.passing and queue.retry_at is None:
            queue.retry_at = now + RETRY_SECONDS

    def _enqueue(self, queue: ClassQueue, key: QueueKey) -> None:
        insort(queue.waiting, key)
        self._shuffled = True

    def _end_trial(self, request: Id, *, placed: bool, scheduled: bool = False) -> None:
        """Record whether a waiting request was placed, and whether its next attempt is `scheduled`. After the
        last of the requests that were placed in parallel, evaluate the hosts of their trial again.
        """
        trial = self._trials.pop(request, None)
        if trial is None:
            return
        trial.open.discard(request)
        trial.placed = trial.placed or placed
        trial.scheduled = trial.scheduled or scheduled
        if not trial.open:
            if not trial.placed:
                # A refused claim is itself a change of the host. Without this, the claim would be repeated
                # endlessly.
                self._distribute_changes()
                queue, failed = trial.queue, set(trial.roots)
                if not trial.scheduled:
                    failed -= queue.untested.keys() | queue.open.keys()  # not those that changed since
                queue.failed_roots.update(failed)
            self._recheck(trial.roots)

    def _reserved_before(self, key: QueueKey, kind: str) -> set[Root]:
        roots = {root for root, first in self.reserved_elsewhere.items() if first < key}
        roots.update(root for root, roots in self.reserved.items() if roots.key < key and roots.kind != kind)
        return roots

    def _barred(self, key: QueueKey, kind: str) -> frozenset[Root]:
        barred = self._reserved_before(key, kind)
        for queue in self._queues.values():
            if queue.kind != kind and queue.waiting and queue.waiting[0] < key:
                barred.update(queue.enough(queue.open, len(queue.waiting)))
        for trial in set(self._trials.values()):
            if trial.queue.kind != kind:
                barred.update(trial.kept)
        return frozenset(barred)
