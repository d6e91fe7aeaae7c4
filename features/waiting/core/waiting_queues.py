"""Queues requests that wait for capacity, and finds the requests that a change of a host may help.

Requests of one equivalence class (of one project) wait in one queue, the highest priority and then the oldest
first. Each queue watches an amount that a host must have free before any of its requests can fit; a change of
a host concerns a queue only if its amount is free there. If a host fits several queues, the queue whose first
request has precedence gets as many instances there as fit, then the next queue. The precedence between queues
is that of priority, then of the turns of their projects (`shares`), then of age.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from bus.vocabulary import Id
from features.waiting.core.fitting import HostsFound
from features.waiting.core.reserved_hosts import (
    MOST_ASKED,
    HasChance,
    Passed,
    ReservedHosts,
    Root,
    Roots,
    StoredHold,
)
from features.waiting.core.shares import Contender, QueueKey, Rank, Shares, Size
from features.waiting.core.waiting_queue import ChangeHistory, ClassQueue, HostData, NextRequest, Trial, Turns
from features.waiting.settings import HELD_SHARE

TOO_MANY = 2_000  # with more changes of hosts in one step, every queue evaluates all hosts
LONGEST_PASSED = 3600.0  # seconds for which other projects may use the host that a first request reserves
RETRY_SECONDS = 1.0  # seconds before a retry if a host is rejected for a temporary reason only


class WaitingQueues:
    """All waiting requests of this scheduler in queues. Callers pass the time; no method awaits."""

    def __init__(
        self,
        hosts: HostData,
        held_share: float = HELD_SHARE,
        has_chance: HasChance = lambda request: True,
        passed: Passed = lambda request: 0.0,
    ) -> None:
        self.shares = Shares()
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
        self.reserved = ReservedHosts(held_share)
        self._has_chance = has_chance
        self._passed = passed
        self._turns: dict[Id, float] = {}  # request → turn of its project when it became first in its queue
        self._bases = Counter[str]()  # base of equivalence classes → number of queues
        self._searched: dict[tuple[str, tuple[Root, ...] | None], HostsFound] = {}  # results of one `settle`
        self._now = 0.0  # the time that the last `settle` was given
        self._shuffled = False  # True if the reserved hosts must be computed again

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request: Id) -> bool:
        return request in self._waiting

    @property
    def mark(self) -> int:
        """Return the number of host changes so far; if it is larger later, hosts have changed in between."""
        return self._changes.mark

    def enter(self, key: QueueKey, project: str, kind: str, needs: int, mark: int | None = None) -> None:
        """Queue a request that found no host. The next search for it covers the hosts that changed after
        `mark`, the count of host changes when the last search began; None: all hosts.
        """
        *_, request = key
        if request in self._waiting:
            return
        queue = self._queues.get(kind) or self._new_queue(project, kind, needs)
        self._waiting[request] = queue, key
        self._enqueue(queue, key)
        missed = None if mark is None else self._changes.since(mark)
        if missed is None:
            queue.all_hosts = True
        else:
            queue.untested.update(dict.fromkeys(missed))

    def _new_queue(self, project: str, kind: str, needs: int) -> ClassQueue:
        watches = self._hosts.watches(kind)  # called first: if it raises, nothing was changed
        size, base = self._hosts.size(kind), self._hosts.base(kind)
        self._bases[base] += 1
        queue = self._queues[kind] = ClassQueue(
            kind, base, project, watches, needs, self._hosts.named_zone(kind), size
        )
        for watch in queue.watches:
            insort(self._watchers.setdefault(watch.resource_class, []), (watch.amount, queue.kind))
        queue.all_hosts = True  # only a search of all hosts shows which hosts only a filter rejects
        return queue

    def leave(self, request: Id) -> None:
        """Remove from its queue a waiting request that was placed or has ended."""
        if request not in self._waiting:
            return
        queue, key = self._waiting.pop(request)
        if key in queue.trying:
            queue.trying.remove(key)
            self._take_back(request)
            self._end_trial(request, placed=True)
        else:
            del queue.waiting[bisect_left(queue.waiting, key)]
        self._shuffled = True
        if not queue.waiting and not queue.trying:
            del self._queues[queue.kind]
            self._bases[queue.base] -= 1
            for watch in queue.watches:
                self._watchers[watch.resource_class].remove((watch.amount, queue.kind))
            self._recheck(queue.open)

    def on_started(self, request: Id, now: float) -> None:
        """Count a waiting request that got hosts in the share of its project."""
        if (trial := self._trials.get(request)) is not None:
            trial.given.add(request)  # it is counted since it is tried
        elif request in self._waiting:
            queue, _ = self._waiting[request]
            self.shares.give(queue.project, queue.size, 1, now)

    def on_placed(self, project: str, size: Size, now: float) -> None:
        """Count a new request that got hosts while others wait in the share of its project."""
        if self._waiting:
            self.shares.give(project, size, 1, now)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Replace the weights of projects; if they differ, evaluate all requests again."""
        if self.shares.set_weights(weights):
            self.everything()

    def ahead(self, kind: str, new: Contender) -> bool:
        """Return whether a waiting request of the class precedes a new request."""
        queue = self._queues.get(kind)
        return queue is not None and queue.first < new.key

    def first(self, kind: str) -> Id | None:
        """Return the first waiting request of a class; None if none waits."""
        queue = self._queues.get(kind)
        return None if queue is None else queue.first[-1]

    def place(self, request: Id) -> tuple[int, str]:
        """Return a waiting request's position in its class, from 1, and the resource classes it waits for."""
        queue, key = self._waiting[request]
        return queue.position(key), " ".join(sorted({watch.resource_class for watch in queue.watches}))

    def place_of_new(self, kind: str, new: Contender) -> int:
        """Return the position that a new request would have in its equivalence class, from 1."""
        queue = self._queues.get(kind)
        return 1 if queue is None else queue.position(new.key)

    def barred(
        self, new: Contender, zone: str = "", fits: Callable[[Roots], bool] = lambda excluding: True
    ) -> frozenset[Root]:
        """Return the hosts that a new request may not use, because requests before it need them. Call
        `settle` first.

        Hosts of the `zone` that the request names are left out if they are reserved for requests that do not
        name it, and the request does not fit without them: `fits` is called with hosts to exclude.
        """
        if not self._queues and not self.reserved.elsewhere:
            return frozenset()
        rank = self.shares.rank(new.project, new.key, self._now)
        reserved, needed = self.reserved.before(rank, ""), self._needed(rank, "")
        last = self._in_zone(zone, reserved - needed)
        if last and not fits(reserved | needed):
            reserved -= last
        return frozenset(reserved | needed)

    def reserved_before(self, request: Id) -> set[Root]:
        """Return the hosts that a waiting request may not use, because they are reserved for others."""
        queue, key = self._waiting[request]
        return self.reserved.before(self._reserving_rank(queue, key), queue.kind) - queue.usable_reserved

    def usable_reserved(self, request: Id) -> frozenset[Root]:
        """Return the hosts reserved for others that a waiting request may use, because it fits on no other
        host of the zone that it names.
        """
        queue, _ = self._waiting[request]
        return queue.usable_reserved

    def _in_zone(self, zone: str, among: set[Root]) -> set[Root]:
        return self.reserved.in_zone(zone, among, self._hosts.zone) if zone and among else set()

    def _allow_reserved(self, queue: ClassQueue) -> None:
        """Let requests that name a zone use hosts there that are reserved for requests of any zone, if they
        fit on no other host of it.
        """
        reserved = self.reserved.before(self._reserving_rank(queue, queue.waiting[0]), queue.kind)
        last = self._in_zone(queue.zone, reserved)
        if last:
            found = self._hosts.search(queue.kind, None, reserved | queue.failed_roots, queue.needs)
            if sum(found.fits.values()) >= queue.needs:
                last = set()
        queue.untested.update(dict.fromkeys(last - queue.usable_reserved - queue.failed_roots))
        queue.usable_reserved = frozenset(last)

    def is_tried(self, request: Id) -> bool:
        """Return whether the waiting request with this id is being placed now."""
        return request in self._trials

    def changed(self, roots: Roots) -> None:
        """Let waiting requests try the given hosts, whose capacity, traits or aggregates have changed."""
        self._note(roots, self._capacity)

    def reported(self, roots: Roots) -> None:
        """Record hosts whose agents reported a change, so that requests which they rejected are evaluated
        again.
        """
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
        for queue in self._queues.values():
            # The capacity may have been missing when placing failed. Once, because the release may also be
            # that of the failed attempt itself.
            again = queue.failed_roots.intersection(roots) - queue.retried
            queue.retried |= again
            queue.failed_roots -= again
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

    def reserve_elsewhere(self, reserved: Mapping[Root, StoredHold]) -> None:
        """Set the hosts that other schedulers have reserved for their waiting requests."""
        self._recheck(self.reserved.set_elsewhere(reserved))

    @property
    def has_work(self) -> bool:
        """Return whether any changed host must be evaluated, or any waiting request can be placed."""
        changed = self._capacity or self._reports or self._released or self._shuffled
        return bool(self._queues) and bool(changed or any(queue.ready for queue in self._queues.values()))

    def next_retry(self) -> float | None:
        """Return when the next periodic retry is due; None if none is planned."""
        retries = [queue.retry_at for queue in self._queues.values() if queue.retry_at is not None]
        return min(retries, default=None)

    def next_requests(self, now: float, most: int = 128) -> list[NextRequest]:
        """Return waiting requests to place now; each counts as being placed until `leave` or `requeue`."""
        self.settle(now)
        given: set[Root] = {root for trial in set(self._trials.values()) for root in trial.kept}
        found: list[NextRequest] = []
        ready = [queue for queue in self._queues.values() if queue.waiting and queue.open]
        turns = Turns(ready, self.shares, now)
        while len(found) < most and (queue := turns.next()) is not None:
            if queue.open.keys() <= given:
                continue
            limit = turns.limit(queue)
            fitting = max(sum(queue.open.values()) // queue.needs, 1)
            several = min(limit, fitting, most - len(found))
            alike, closed = self._alike(queue, several)
            if alike < several:
                limit = alike
            roots = [root for root in queue.open if root not in given and root not in closed]
            if not roots:
                continue
            kept = queue.enough(roots, limit)
            if limit < len(queue.waiting):
                roots = kept  # the others are left for further turns
            capacity = sum(queue.open[root] for root in roots)
            several = min(max(capacity // queue.needs, 1), alike)
            given.update(kept)
            found += self._begin_trial(queue, several, roots, kept, closed)
            turns.again(queue)
        return found

    def _alike(self, queue: ClassQueue, most: int) -> tuple[int, frozenset[Root]]:
        """Return how many of the first `most` waiting requests of a queue may use the same hosts, and the
        hosts that they may not use.
        """
        closed = self._closed(queue, 0)
        if len(self._queues) == 1 and not self.reserved.elsewhere:
            return most, closed
        return next((at for at in range(1, most) if self._closed(queue, at) != closed), most), closed

    def _closed(self, queue: ClassQueue, at: int) -> frozenset[Root]:
        """Return the hosts that the waiting request at an index of its queue may not use, if those before it
        are given hosts.
        """
        rank = self.shares.rank(queue.project, queue.waiting[at], self._now)
        if not at:
            return frozenset(self.reserved_before(rank.request) | self._needed(rank, queue.kind))
        rank = rank._replace(turn=self.shares.turn_after(queue.project, queue.size, at, self._now))
        reserved = self.reserved.before(rank, queue.kind) - queue.usable_reserved
        return frozenset(reserved | self._needed(rank, queue.kind))

    def _begin_trial(
        self,
        queue: ClassQueue,
        several: int,
        roots: Sequence[Root],
        kept: Sequence[Root],
        closed: frozenset[Root],
    ) -> list[NextRequest]:
        """Let the first requests of a queue be placed on the hosts `roots`; they may use all others except
        `closed`, too. Until they have ended, the hosts in `kept` are closed to requests of other classes.
        """
        chosen = queue.waiting[:several]
        queue.size = self._hosts.size(queue.kind)
        requests = {request for *_, request in chosen}
        trial = Trial(queue, tuple(roots), tuple(kept), closed, requests, queue.size, self._now)
        self.shares.give(queue.project, queue.size, several, self._now)
        del queue.waiting[:several]
        for root in roots:
            del queue.open[root]
        queue.trying.update(chosen)
        self._trials.update((request, trial) for *_, request in chosen)
        swept, queue.swept = queue.swept, False
        return [NextRequest(request, closed, swept) for *_, request in chosen]

    def requeue(self, request: Id, retry_at: float | None = None) -> None:
        """Put a request that was tried without success back into its queue. It is retried at `retry_at`
        (None: at no set time), or earlier after a change that it waits for.
        """
        if request not in self._waiting:
            return
        queue, key = self._waiting[request]
        if key in queue.trying:
            self._take_back(request)
            self._end_trial(request, placed=False, scheduled=retry_at is not None)
            queue.trying.remove(key)
            self._enqueue(queue, key)
        if retry_at is not None:
            queue.retry_at = retry_at if queue.retry_at is None else min(queue.retry_at, retry_at)

    def settle(self, now: float) -> None:
        """Evaluate each changed host for the queues with waiting requests that may fit on it."""
        self._now = now
        self._searched.clear()
        self._drop_filled()
        self._distribute_changes()
        if self._shuffled or self.reserved.is_due(now):
            self._shuffled = False
            self._forget_turns()
            for queue in self._queues.values():
                self._set_turn(queue, queue.first)
            firsts = [(self._reserving_rank(queue, queue.first), queue) for queue in self._queues.values()]
            ended = self.reserved.renew(firsts, self._hosts, self._has_chance, self._passed, now)
            self._recheck(ended)
            self._distribute_changes()
        for queue in self._queues.values():
            if queue.retry_at is not None and queue.retry_at <= now:
                # Also if all requests are being placed, so that the retry is not lost.
                queue.all_hosts, queue.retry_at = True, None
            if not queue.waiting:
                continue  # all requests of the queue are being placed
            self._set_turn(queue, queue.waiting[0])
            self._retry_reserved(queue)
            if queue.zone:
                self._allow_reserved(queue)
            if queue.all_hosts or queue.untested:
                self._evaluate(queue, now, all_hosts=queue.all_hosts)
            if queue.open:
                reserved = self.reserved_before(queue.waiting[0][-1]) & queue.open.keys()
                for root in reserved:
                    del queue.open[root]  # the host was found before it was reserved for another request
                self._recheck(reserved)
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
                queue.retried.discard(root)
            if root in self.reserved.own:
                self._shuffled = True
        for root in released:
            for queue in self._concerned(root):
                if root in queue.closed:
                    queue.closed.discard(root)
                    queue.failed_roots.discard(root)
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
            queue.closed.clear()
            queue.retried.clear()
        else:
            closed = [root for root in changed if queue.open.pop(root, 0)]
            queue.refused.difference_update(changed)
        self._search(queue, now, None if all_hosts else changed)
        self._recheck([root for root in closed if root not in queue.open])

    def _search(self, queue: ClassQueue, now: float, among: Roots | None) -> None:
        queue.swept = False
        excluded = self.reserved_before(queue.waiting[0][-1]) | queue.failed_roots
        enough = len(queue.waiting) * queue.needs
        found = self._find(queue, among, excluded, enough)
        queue.open.update(found.fits)
        queue.refused.update(found.refused)
        queue.more = queue.more or found.more
        if found.passing and queue.retry_at is None:
            queue.retry_at = now + RETRY_SECONDS

    def _find(self, queue: ClassQueue, among: Roots | None, excluded: set[Root], enough: int) -> HostsFound:
        """Search hosts for a queue; queues of equal requests of several projects share one search."""
        if self._bases[queue.base] > 1:
            key = queue.base, None if among is None else tuple(among)
            if (shared := self._searched.get(key)) is None:
                shared = self._searched[key] = self._hosts.search(queue.kind, among, (), enough)
            if not shared.more and not (shared.passing and excluded.intersection(shared.refused)):
                fits = {root: several for root, several in shared.fits.items() if root not in excluded}
                refused = [root for root in shared.refused if root not in excluded]
                return HostsFound(fits, refused, shared.passing)
        return self._hosts.search(queue.kind, among, excluded, enough)

    def _drop_filled(self) -> None:
        """Delete the hosts found for queues that other requests have filled since."""
        free: dict[Root, Mapping[str, int]] = {}
        for queue in self._queues.values():
            if not 0 < len(queue.open) <= MOST_ASKED:
                continue
            for root in list(queue.open):
                if root not in free:
                    free[root] = self._hosts.free(root)
                if not queue.may_fit(free[root]):
                    del queue.open[root]
                    self._recheck([root])  # it was closed to requests after those of this queue

    def _enqueue(self, queue: ClassQueue, key: QueueKey) -> None:
        insort(queue.waiting, key)
        self._shuffled = True

    def _retry_reserved(self, queue: ClassQueue) -> None:
        """Evaluate reserved hosts again if the first request of a queue precedes the one for which hosts were
        searched last: hosts that were closed to that one may be open to this one.
        """
        rank, before = self._reserving_rank(queue, queue.waiting[0]), queue.searched
        queue.searched = rank
        if before is not None and (rank.turn < before.turn or rank.key < before.key):
            reserved = {*self.reserved.own, *self.reserved.elsewhere} - queue.failed_roots
            tried = [self._trials[other].roots for *_, other in queue.trying]  # evaluated at the trial's end
            queue.untested.update(dict.fromkeys(reserved.difference(*tried)))

    def _take_back(self, request: Id) -> None:
        """Do not count a request that was tried, and got no hosts, in the share of its project."""
        trial = self._trials[request]
        if request not in trial.given:
            self.shares.take_back(trial.queue.project, trial.size, trial.at)

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
                queue.closed.update(trial.closed)
            self._recheck(trial.roots)

    def _set_turn(self, queue: ClassQueue, key: QueueKey) -> None:
        """Set the turn by which a request that is first in its queue reserves hosts, and uses hosts that are
        reserved for others. Other requests of its project that are given capacity later do not delay it, and
        requests of projects that begin to wait pass it for at most LONGEST_PASSED seconds.
        """
        *_, request = key
        turn = min(self.shares.turn(queue.project, self._now), self._now + LONGEST_PASSED)
        self._turns[request] = min(self._turns.get(request, turn), turn)

    def _reserving_rank(self, queue: ClassQueue, key: QueueKey) -> Rank:
        rank = self.shares.rank(queue.project, key, self._now)
        return rank._replace(turn=self._turns.get(rank.request, rank.turn))

    def _needed(self, rank: Rank, kind: str) -> set[Root]:
        """Return the hosts that requests of other queues before `rank` try, or are about to try."""
        needed = set[Root]()
        for queue in self._queues.values():
            if queue.kind == kind or not (queue.waiting and queue.open):
                continue
            first = self.shares.rank(queue.project, queue.waiting[0], self._now)
            if first.precedes(rank):
                other = queue.project != rank.project
                several = queue.preceding(rank, self.shares, self._now) if other else len(queue.waiting)
                needed.update(queue.enough(queue.open, several))
        for trial in set(self._trials.values()):
            if trial.queue.kind != kind:
                needed.update(trial.kept)
        return needed

    def _forget_turns(self) -> None:
        if len(self._turns) > 2 * len(self._waiting) + TOO_MANY:
            self._turns = {request: turn for request, turn in self._turns.items() if request in self._waiting}
