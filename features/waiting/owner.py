"""Takes over the requests of schedulers that send no heartbeats."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter

import msgspec
from msgspec import structs

from bus.clock import Clock, moment_text
from bus.decisions import Decision
from bus.parts import DecisionParts
from bus.queries import DecisionFound, FindWaiting, HeldHost, WaitingFound, WaitingRequest
from bus.sql.statement import Transaction
from bus.vocabulary import Id
from features.waiting.core.reserved_hosts import Root, StoredHold
from features.waiting.core.shares import shares_of
from features.waiting.messages import priority_of
from features.waiting.queue import WaitingQueue
from features.waiting.request_backlog import RequestBacklog
from features.waiting.start_estimates import Listed
from features.waiting.tables import listing, queued
from features.waiting.tables import weights as weights_table
from features.waiting.tables.queued import Depth, FoundQueued, OtherScheduler, QueuedRequest

log = logging.getLogger(__name__)

SILENT_SECONDS = 5.0  # seconds after which another scheduler takes over the requests of a silent one
PAGE = 500  # requests that are taken over in one transaction
ADOPTING_SECONDS = 1.0  # seconds of each heartbeat for takeovers
KINDS = 50  # equivalence classes in one answer

_encode = msgspec.json.Encoder().encode
_served = msgspec.json.Decoder(dict[str, float]).decode


class WaitingOwner:
    """Takes over waiting requests of silent schedulers, and answers queries about all waiting requests."""

    def __init__(self, queue: WaitingQueue, backlog: RequestBacklog, clock: Clock) -> None:
        self._queue = queue
        self._backlog = backlog
        self._store = queue.store
        self._clock = clock
        # owner → number of its last heartbeat, and when this number changed
        self._received: dict[str, tuple[int, float]] = {}
        self._compared = 0  # `unknown_commits` at the last comparison with the database
        self._missing: set[Id] = set()  # requests that were stored then, and not in memory

    async def beat(self) -> None:
        """Store this scheduler's heartbeat if it owns waiting requests, read the other schedulers'
        heartbeats, and take over the waiting requests of silent schedulers.
        """
        with self._store.noting_unknown_commits():
            await self._beat()

    async def _beat(self) -> None:
        store = self._store
        unknown = store.unknown_commits
        before = {*store.requests}
        async with store.database.write() as tx:
            if store.requests or store.entered:
                self._backlog.measure_starts()
                await store.live(tx, store.starts.encoded())
                served = _encode(self._backlog.served()).decode()
                await queued.SERVED(tx, owner=store.name, served=served)
            found: list[QueuedRequest] = []
            if store.taken_for_dead or unknown != self._compared:
                found = await self._compare(tx, before)
            others = [scheduler for scheduler in await queued.roster(tx) if scheduler.owner != store.name]
            cancelled = await queued.cancelled(tx, store.name)
            if cancelled:
                await queued.drop(tx, cancelled)
        store.leave(cancelled)
        if store.taken_for_dead:  # an adoption that began before this heartbeat may commit after it
            store.taken_for_dead = False
            store.unknown_commits += 1
        for entry in found:
            if entry.request not in store.requests and entry.request not in cancelled:
                log.warning("request %s is stored, and was not in memory: it is evaluated", entry.request)
                store.enter_again(entry)
        store.doubt(found)
        if not self._missing:
            self._compared = unknown
        self._read_reserved(others)
        ended = self._ended(others)
        if ended:
            # nothing is taken over before the index is loaded: `seen` raises Unavailable
            _ = store.fitting.source.seen
        until = self._clock.monotonic() + ADOPTING_SECONDS
        for scheduler in ended:
            await self._adopt(scheduler, until)
        self._queue.recheck()

    def _read_reserved(self, others: list[OtherScheduler]) -> None:
        """Take the hosts that other schedulers have reserved from their heartbeats. If several have reserved
        one host, the oldest request counts.
        """
        reserved = dict[Root, StoredHold]()
        for hold in (hold for other in others for hold in queued.holds_of(other)):
            if hold.root not in reserved or hold.key < reserved[hold.root].key:
                reserved[hold.root] = hold
        self._store.queues.reserve_elsewhere(reserved)

    async def _compare(self, tx: Transaction, before: set[Id]) -> list[QueuedRequest]:
        """Compare the stored requests of this scheduler with those in memory (`before`): leave requests that
        are not stored any more, or by another scheduler; return those that are to enter memory.

        A request that is being stored or deleted now differs only for a moment, so a request enters memory
        only if two comparisons have missed it.
        """
        store = self._store
        ours = await queued.owned(tx, store.name)
        if lost := sorted(before - ours):
            log.warning("%d requests are not stored, or wait with another scheduler now", len(lost))
            store.starts.forget(lost)
            store.leave(lost)
        missing = ours - store.requests.keys()
        again, self._missing = missing & self._missing, missing
        await self._backlog.stored.recount(tx)
        if not again:
            return []
        self._missing = missing - again
        return await queued.owned_of(tx, store.name, again)

    async def sweep(self) -> None:
        """Evaluate all hosts for all waiting requests, in case a change of a host or a quota was missed. Also
        check again which requests hold hosts that a former owner claimed, and compare the stored requests
        with those in memory.
        """
        store = self._store
        store.unknown_commits += 1
        store.doubt(())
        store.on_wakes({""})
        store.queues.sweep(self._clock.monotonic())
        store.held.wake()

    async def release_ownership(self) -> None:
        """Let another scheduler take over this scheduler's requests immediately when it stops."""
        try:
            await self._backlog.stored.flush()
            if not self._store.requests and not self._backlog.stored.projects:
                return
            async with self._store.database.write() as tx:
                await queued.RELEASE(tx, owner=self._store.name)
        except Exception as problem:  # the worker stops even if its database is unreachable
            log.warning("could not release %d requests: %s", len(self._store.requests), problem)

    def _ended(self, others: list[OtherScheduler]) -> list[OtherScheduler]:
        """Return the schedulers whose end is recorded, or that have sent no heartbeat for some time."""
        now = self._clock.monotonic()
        self._received = {
            scheduler.owner: self._received[scheduler.owner]
            for scheduler in others
            if scheduler.owner in self._received
        }
        ended = []
        for scheduler in sorted(others, key=attrgetter("owner")):
            beat, since = self._received.get(scheduler.owner, (None, now))
            if beat != scheduler.beat:
                self._received[scheduler.owner] = scheduler.beat, now
            if scheduler.beat < 0 or (beat == scheduler.beat and now - since > SILENT_SECONDS):
                ended.append(scheduler)
        return ended

    async def _adopt(self, before: OtherScheduler, until: float) -> None:
        """Take over the requests of a scheduler that ended, page by page; the next heartbeat continues after
        the time `until`. First those that lack something, then the new requests of the projects with the
        fewest, so that a single request does not wait for a flood.
        """
        store, clock, several = self._store, self._clock, 0
        if before.beat >= 0:
            async with store.database.write() as tx:
                if not await queued.END(tx, owner=before.owner, beat=before.beat):
                    return  # it goes on, or another scheduler has recorded its end
            before = structs.replace(before, beat=queued.ENDED)
        store.starts.adopt([before.starts])
        adopted, page = list[QueuedRequest](), PAGE
        while page == PAGE and clock.monotonic() < until:
            async with store.database.write() as tx:
                await store.live(tx)  # first, as where requests are stored: else the two deadlock
                adopted, page = await queued.adopt(tx, store.name, before, PAGE)
            for entry in adopted:
                store.enter_again(entry)
            store.doubt(adopted)
            several += page
        async with store.database.read() as tx:
            depths = await queued.depths(tx, before.owner)
        for projects in _in_pages(depths):
            page = PAGE
            while page == PAGE and clock.monotonic() < until:
                async with store.database.write() as tx:
                    await store.live(tx)
                    new = await queued.adopt_new(tx, store.name, before, projects, PAGE)
                self._backlog.stored.on_adopted(new)
                page = len(new)
                several += page
        async with store.database.write() as tx:
            if await queued.BURY(tx, owner=before.owner, beat=before.beat):
                self._received.pop(before.owner, None)
        if several:
            log.warning("adopted %d requests of %s", several, before.owner)

    async def waiting(self, question: FindWaiting) -> WaitingFound:
        """Return the waiting requests of all schedulers from the database."""
        store = self._store
        async with store.database.read() as tx:
            found = await listing.waiting(tx, question)
            count = await listing.count(tx, question.project)
            by_project = await listing.counts(tx, question.projects)
            kinds = await listing.kinds(tx, question.project, KINDS)
            roster = await queued.roster(tx)
            backlogged = {} if question.requests else await queued.new_counts(tx)
            weights = {} if question.requests else await weights_table.weights(tx)
        end = question.after + len(found)
        return WaitingFound(
            waiting=tuple(self._with_hosts(store.starts.estimated(found, store.queues, roster), roster)),
            count=count,
            kinds=tuple(kinds),
            rescued=sum(scheduler.rescued for scheduler in roster),
            more=end if not question.requests and end < count else None,
            by_project=by_project,
            backlog=backlogged,
            weights=weights,
            shares=shares_of(_served(scheduler.served) for scheduler in roster if scheduler.served),
            holds=tuple(held for held in self.held(roster) if held.root in question.on),
        )

    async def projects_of(self, ids: Collection[Id]) -> Mapping[Id, str]:
        """Return, by id, the project of each build or request that waits for a host."""
        async with self._store.database.read() as tx:
            return await listing.projects_of(tx, ids)

    async def explain(self, id_: Id, ended: DecisionFound) -> DecisionFound:
        """Return which capacity a request lacks while it waits. If it does not wait, return the decision
        `ended` with the hosts that it names and that are held for waiting requests.
        """
        store = self._store
        async with store.database.read() as tx:
            found = await queued.find(tx, id_)
            if found is None or not store.can_read(found.queued):
                held = held_named(ended.decision, self.held(await queued.roster(tx)))
                return structs.replace(ended, held=held)
            entry = found.queued
            listed = await listing.waiting(tx, FindWaiting(requests=(entry.request,)))
            roster = await queued.roster(tx)
        start_p50, start_p90 = self._expected(found, listed, roster)
        return DecisionFound(
            known=True,
            request=entry.message,
            builds=entry.message.instances if entry.subject is None else (entry.subject.instance,),
            reason=entry.lacks,
            decision=entry.decision,
            at=entry.since,
            waits=True,
            until=entry.until,
            wakes=entry.wakes,
            parts=DecisionParts() if entry.subject is None else store.purpose_of(entry).decision_parts(entry),
            start_p50=start_p50,
            start_p90=start_p90,
            held=held_named(entry.decision, self.held(roster), entry.request),
        )

    def held(self, roster: list[OtherScheduler]) -> list[HeldHost]:
        """Return the hosts that the schedulers of `roster` hold for waiting requests."""
        source = self._store.fitting.source
        holds = [hold for scheduler in roster for hold in queued.holds_of(scheduler)]
        names = {host.uuid: host.host for host in source.hosts()} if holds else {}
        return [
            HeldHost(
                root=hold.root,
                host=names[hold.root],
                request=hold.request,
                project=hold.project,
                since=hold.since,
                until=hold.until,
            )
            for hold in holds
            if hold.root in names
        ]

    def _expected(
        self, found: FoundQueued, listed: Listed, roster: list[OtherScheduler]
    ) -> tuple[float | None, float | None]:
        """Return when a request will start, or will be evaluated if it is in the backlog."""
        message = found.queued.message
        if found.before is not None:
            before, priority = {found.owner: found.before}, priority_of(message.parts)
            start = self._store.starts.expected_evaluation(message.project, priority, before, roster)
            return start or (None, None)
        for request in self._store.starts.estimated(listed, self._store.queues, roster):
            return request.start_p50, request.start_p90
        return None, None

    def _with_hosts(self, found: list[WaitingRequest], roster: list[OtherScheduler]) -> list[WaitingRequest]:
        by_request: dict[Id, list[HeldHost]] = {}
        for held in self.held(roster):
            by_request.setdefault(held.request, []).append(held)
        answers = []
        for waits in found:
            held_for = by_request.get(waits.request, [])
            hosts = ", ".join(f"{held.host} since {moment_text(held.since)}" for held in held_for[:3])
            more = f" and {len(held_for) - 3} more" if len(held_for) > 3 else ""
            wakes = f"{waits.wakes}; held for it: {hosts}{more}" if hosts else waits.wakes
            answers.append(structs.replace(waits, wakes=wakes, held=tuple(held_for)))
        return answers


def _in_pages(depths: Iterable[Depth]) -> list[list[str]]:
    """Return projects by their number of requests, those together that have at most PAGE requests."""
    requests = Counter[str]()
    for depth in depths:
        requests[depth.project] += depth.requests
    pages, left = list[list[str]](), 0
    for project in sorted(requests, key=lambda project: requests[project]):
        if requests[project] > left:
            pages.append([])
            left = PAGE
        pages[-1].append(project)
        left -= requests[project]
    return pages


def held_named(decision: Decision, held: list[HeldHost], request: Id = "") -> tuple[HeldHost, ...]:
    """Return the hosts held for requests other than `request` that a decision names as reserved."""
    names = {miss.host for miss in decision.nearest if miss.code == "reserved"}
    names.update(*(removal.hosts for removal in decision.removals if removal.code == "reserved"))
    return tuple(each for each in held if each.host in names and each.request != request)
