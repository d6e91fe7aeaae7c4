"""Holds this scheduler's waiting requests in memory and in the database; passes host changes to the queues.

A request is stored before its message is acknowledged. The queues decide which request is tried first.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from bus.context import StoredContext
from bus.decisions import WAKES, Decision
from bus.sql.failures import retrying
from bus.vocabulary import Id, Message, cause_of, seconds_of
from features.waiting.core.rule_waits import RuleWaits
from features.waiting.core.waiting_request import names_other_instances
from features.waiting.held_hosts import HeldHosts, contender_of, sharing_project, waits_since
from features.waiting.hosts import needs_of
from features.waiting.owned_rows import OwnedRows
from features.waiting.purposes import WaitingPurpose
from features.waiting.related_hosts import RelatedHosts
from features.waiting.signal import QUOTA_WAITING, RESCUED, WAITING_NOW
from features.waiting.tables import queued
from features.waiting.tables.queued import QueuedRequest
from features.waiting.weights import ProjectWeights
from scheduler_worker.extension import Order, Placing, RefusalRecords, log

BEHIND = "equal requests came before it"


class Marks(NamedTuple):
    """Counts of changes at the start of an evaluation, to notice changes during it."""

    regroupings: int  # number of times that all equivalence classes were computed again
    rule_wakes: int


# a request, and the mark (`WaitingQueues.mark`) of the search that found no host for it
Marked = tuple[QueuedRequest, int | None]


class WaitingStore:
    """Holds the waiting requests that this scheduler owns; calls `changed` when they change."""

    def __init__(
        self, scheduler: Placing, held: HeldHosts, rows: OwnedRows, changed: Callable[[], None]
    ) -> None:
        self.rows = rows
        self.database = rows.database
        self.held = held
        self.sizes = held.sizes
        self.fitting = held.fitting
        self.queues = held.queues
        self.rule_waits = RuleWaits()
        self.requests = held.requests
        self.starts = held.starts
        self.weights = ProjectWeights(rows.database, held.queues.set_weights)
        self.woken = held.woken
        # The purposes of requests that boot no instance, by name; joins of waiting add them.
        self.purposes: dict[str, WaitingPurpose] = {}
        self.refusals = RefusalRecords(rows.database, scheduler.clock)
        self.related = RelatedHosts(scheduler.resolved, scheduler.watch)
        self._unrecorded: set[Id] = set()  # requests whose last evaluation is not stored
        # Requests whose builds may hold hosts: an evaluation was interrupted between its claims and its
        # messages.
        self.unsure: set[Id] = set()
        self.check_unsure = False
        # Requests that no rule refuses any more: they are evaluated once even if no host seems to fit,
        # because their reason names the rule.
        self.unexplained: set[Id] = set()
        self.regroupings = 0  # number of times that all equivalence classes were computed again
        self.regroup = False  # True if all equivalence classes must be computed again
        self._clock = scheduler.clock
        self._scheduler = scheduler
        self._changed = changed
        self.add = retrying(self._clock)(self._add_once)

    def add_purpose(self, purpose: WaitingPurpose) -> None:
        """Register a purpose of orders that may wait, such as moves."""
        self.purposes[purpose.purpose.name] = purpose

    def purpose_of(self, entry: QueuedRequest) -> WaitingPurpose:
        """Return the purpose of a waiting request with a subject."""
        assert entry.subject is not None, entry.request
        return self.purposes[entry.subject.purpose]

    def can_read(self, entry: QueuedRequest) -> bool:
        """Return False for the subject of a deleted feature, or of a version with other data."""
        if entry.subject is None:
            return True
        purpose = self.purposes.get(entry.subject.purpose)
        return purpose is not None and purpose.can_read(entry.subject)

    def message_of(self, order: Order) -> Message:
        """Return the message that requested an order."""
        purpose = self.purposes.get(order.purpose.name)
        return order.request if purpose is None else purpose.message_of(order)

    def enter(self, entry: QueuedRequest, mark: int | None = None) -> None:
        """Queue a request in memory. Only hosts changed since `mark` (a number; None: all) are evaluated."""
        self._enqueue(entry, mark)
        self.requests[entry.request] = entry
        self.starts.enter(entry, *self.queues.place(entry.request))
        if names_other_instances(entry.message):
            self.related.is_outdated = True
        self._moved()

    def _enqueue(self, entry: QueuedRequest, mark: int | None = None) -> None:
        project = entry.contender.project
        self.queues.enter(entry.key, project, entry.kind, needs_of(entry.message), mark)

    def enter_again(self, entry: QueuedRequest) -> None:
        """Add or replace a waiting request after computing its equivalence class again. A request whose
        subject no feature in the list can read stays stored, and is not evaluated.
        """
        if not self.can_read(entry):
            log.error("request %s waits, and no feature can read its subject", entry.request)
            return
        if entry.subject is None:
            [order] = self._scheduler.begin([entry.message], again=True)
        else:
            order = self.purpose_of(entry).begin(entry)
        if order.verdict.invalid:  # for example because a host was deleted
            entry = replace(entry, until=self._clock.now(), lacks=order.verdict.invalid)
        kind = self.kind(order)
        self._remove([entry.request])
        self.enter(replace(entry, kind=kind, wakes=self.fitting.wakes(kind)))

    def doubt(self, entries: Iterable[QueuedRequest]) -> None:
        """Record requests that may already have claims, and wake the task that checks their claims."""
        self.unsure.update(entry.request for entry in entries)
        self.check_unsure = bool(self.unsure)
        self.held.wake()

    def leave(self, requests: Collection[Id]) -> None:
        """Forget requests that do not wait any more."""
        self._remove(requests)
        self.unsure.difference_update(requests)
        self.starts.leave(requests)

    def on_placed(self, placed: Sequence[Order]) -> None:
        """Count new requests that got hosts while others wait in the shares of their projects."""
        now = self._clock.monotonic()
        for order in placed:
            self.queues.on_placed(order.request.project, self.sizes.of_request(order.request), now)

    def _remove(self, requests: Collection[Id]) -> None:
        for request in requests:
            self.requests.pop(request, None)
            self.unexplained.discard(request)
            self.queues.leave(request)
            if (following := self.rule_waits.leave(request)) is not None:
                self._try_again([following])
        if requests:
            self._moved()

    @property
    def marks(self) -> Marks:
        return Marks(self.regroupings, self.rule_waits.mark)

    def hold(self, entry: QueuedRequest, wakes_on: str, mark: int) -> bool:
        """Let a request that a rule refused, and all equal requests of its project, wait for a commit with
        the key `wakes_on`. Return False without effect if requests that wait for this key were woken since
        `mark`, a count of wakes.
        """
        project, kind = entry.message.project, entry.kind
        if self.rule_waits.woken_since(wakes_on, mark):
            return False
        equal = [entry]
        if not self.rule_waits.holds(project, kind):
            equal += [
                other
                for other in self.requests.values()
                if other.kind == kind
                and other.message.project == project
                and not self.queues.is_tried(other.request)
                and other.request != entry.request
            ]
        for each in equal:
            self.queues.leave(each.request)
            self.rule_waits.hold(each.key, project, kind, wakes_on)
            self.starts.enter(each, self.rule_waits.position(each.key), wakes_on, is_refused=True)
        self._moved()
        return True

    def on_wakes(self, keys: Collection[str]) -> None:
        """Try requests again that wait for a commit with one of the keys."""
        self._try_again(self.rule_waits.wake(keys))

    def refusal_lifted(self, first: QueuedRequest) -> list[QueuedRequest]:
        """Let the requests equal to `first` wait for capacity, too, if a rule had refused them: `first` was
        tried again, and no rule refused it. Return them with the new reason.
        """
        lifted = list[QueuedRequest]()
        for request in self.rule_waits.lift(first.message.project, first.kind):
            entry = replace(
                self.requests[request],
                lacks=cause_of(f"{BEHIND}: {first.lacks}"),
                decision=first.decision,
                wakes=first.wakes,
                wakes_on="",
            )
            self.enter(entry)
            lifted.append(entry)
        return lifted

    def _try_again(self, requests: Sequence[Id]) -> None:
        for request in requests:
            entry = self.requests[request]
            self._enqueue(entry)
        self.unexplained.update(requests)
        if requests:
            self._moved()
            self.held.wake()

    def due(self) -> list[QueuedRequest]:
        """Return the waiting requests with an expired time limit, except requests being placed now."""
        now = self._clock.now()
        expired = [entry for entry in self.requests.values() if entry.until <= now]
        return [entry for entry in expired if not self.queues.is_tried(entry.request)]

    def end_at(self, entry: QueuedRequest, until: float, **changed: Any) -> None:
        """Change the time at which a request stops waiting."""
        if (known := self.requests.get(entry.request)) is not None:
            self._remove([entry.request])
            self.enter(replace(known, until=until, **changed))

    def compute_classes(self) -> None:
        """Compute the class of each request again, because the rules for classes have changed."""
        self.regroup = False
        self.regroupings += 1
        for entry in list(self.requests.values()):
            self.enter_again(entry)
        self.fitting.forget({entry.kind for entry in self.requests.values()})

    async def refresh_related(self) -> None:
        """Evaluate waiting requests again if instances that they name moved; end requests with a deleted
        server group.
        """
        if not self.related.is_outdated:
            return
        naming = [entry for entry in self.requests.values() if names_other_instances(entry.message)]
        moved, impossible = await self.related.moved({entry.kind: entry.message for entry in naming})
        for kind in moved:
            self.queues.on_related_hosts_changed(kind)
        for entry in naming:
            # A request with a subject does not end with its server group: it is read again without the group.
            if entry.kind in impossible and entry.subject is None:
                self.end_at(entry, self._clock.now(), lacks=cause_of(impossible[entry.kind]))

    def _moved(self) -> None:
        WAITING_NOW.set(len(self.requests))
        QUOTA_WAITING.set(len(self.rule_waits))
        self._changed()

    def kind(self, order: Order) -> str:
        return self.fitting.kind(order.request, order.alternatives, sharing_project(order))

    def wakes(self, kind: str, decision: Decision) -> str:
        """Describe for operators which change lets a request with this `decision` be tried again."""
        return WAKES.get(decision.code) or self.fitting.wakes(kind)

    def is_behind(self, order: Order, now: float) -> bool:
        """Return whether equal requests wait before the order, so that it must wait as well."""
        if not self.requests:
            return False
        kind = self.kind(order)
        held = self.rule_waits.holds(order.request.project, kind)
        return held or self.queues.ahead(kind, contender_of(order, now))

    def behind(self, order: Order, now: float, seen: int, context: StoredContext) -> QueuedRequest:
        """Return the row of a request that is to wait without a search: requests of its equivalence class
        wait already, so no host fits it."""
        kind, project = self.kind(order), order.request.project
        held = self.rule_waits.first(project, kind)
        known = self.requests.get(held or self.queues.first(kind) or "")
        why, decision, wakes_on = BEHIND, Decision(code="line"), ""
        if known is None:
            return self.waiting(order, now, seen, why, decision, context)
        # A request that a rule refused and that is first in a class queue is about to be tried: its reason is
        # outdated.
        if held or not known.wakes_on:
            decision, wakes_on = known.decision, known.wakes_on
        return self.waiting(order, now, seen, f"{why}: {known.lacks}", decision, context, wakes_on)

    def waiting(
        self,
        order: Order,
        now: float,
        seen: int,
        why: str,
        decision: Decision,
        context: StoredContext,
        wakes_on: str = "",
    ) -> QueuedRequest:
        kind, purpose = self.kind(order), self.purposes.get(order.purpose.name)
        return QueuedRequest(
            message=order.request,
            kind=kind,
            since=waits_since(order, now),
            until=now + seconds_of(order.request.parts.waits.longest),
            seen=seen,
            lacks=cause_of(why),
            wakes=self.wakes(kind, decision),
            wakes_on=wakes_on,
            decision=decision,
            story=context,
            subject=None if purpose is None else purpose.subject_of(order),
        )

    def enter_stored(self, stored: Sequence[Marked], ours: set[Id], marks: Marks) -> None:
        """Add the stored waiting requests that this scheduler owns (`ours`) to the queues. If all equivalence
        classes were computed again since `marks`, compute the requests' classes again.
        """
        for entry, mark in stored:
            if entry.request not in ours or entry.request in self.requests:
                continue
            if marks.regroupings == self.regroupings:
                self.enter(entry, mark)
                if entry.wakes_on and not self.hold(entry, entry.wakes_on, marks.rule_wakes):
                    self.queues.requeue(entry.request, self._clock.monotonic())
            else:
                self.enter_again(entry)
        self.held.wake()

    async def _add_once(self, to_store: Sequence[QueuedRequest]) -> tuple[dict[Id, Id], set[Id]]:
        """Store new requests. Return the waiting request of each instance that is a subject, and the ids of
        the requests stored for this scheduler.
        """
        subjects = {entry.subject.instance: entry.request for entry in reversed(to_store) if entry.subject}
        async with self.rows.adding() as tx:
            first = await queued.one_of_each(tx, subjects) if subjects else {}
            later = {each.request for each in to_store if each.subject} - {*first.values()}
            entries = [entry for entry in to_store if entry.request not in later]
            return first, await queued.add(tx, self.rows.name, entries)

    async def stored_elsewhere(self, requests: Collection[Id]) -> dict[Id, QueuedRequest]:
        """Return those of the given requests that wait at other schedulers."""
        async with self.database.read() as tx:
            return {each.request: each for each in await queued.of_any_owner(tx, requests)}

    async def lacking(self, changed: Sequence[QueuedRequest]) -> None:
        """Store the evaluations of changed requests, and those that an earlier call could not store."""
        self._unrecorded.update(entry.request for entry in changed)
        entries = [self.requests[request] for request in self._unrecorded if request in self.requests]
        if entries:
            async with self.database.write() as tx:
                await queued.evaluated(tx, entries)
            self._changed()
        stored = {entry.request for entry in entries if self.requests.get(entry.request) is entry}
        self._unrecorded = {request for request in self._unrecorded - stored if request in self.requests}

    async def drop(self, requests: Sequence[Id]) -> None:
        """Delete requests from the database and from memory."""
        if requests:
            with self.rows.noting_unknown_commits():
                async with self.database.write() as tx:
                    await queued.drop(tx, requests)
            self.leave(requests)

    def rescue(self, entry: QueuedRequest) -> None:
        """Count and log a waiting request that fitted a host although no change had woken it."""
        self.rows.rescued += 1
        RESCUED.inc()
        log.error(
            "request %s waited for %.0f s although a host fitted: no change had woken it (class %s)",
            *(entry.request, self._clock.now() - entry.since, entry.kind),
        )
