"""Stores heartbeats, and takes over the requests of schedulers that send none."""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import TypeVar

import msgspec
from msgspec import structs

from bus.clock import Clock
from bus.sql.statement import Transaction
from bus.vocabulary import Id
from features.waiting.core.reserved_hosts import Root, StoredHold
from features.waiting.queue import WaitingQueue
from features.waiting.request_backlog import RequestBacklog
from features.waiting.tables import queued
from features.waiting.tables.queued import Depth, OtherScheduler, QueuedRequest

log = logging.getLogger(__name__)

SILENT_SECONDS = 5.0  # seconds after which another scheduler takes over the requests of a silent one
PAGE = 500  # requests that are taken over in one transaction
ADOPTING_SECONDS = 1.0  # seconds of each heartbeat for takeovers

_encode = msgspec.json.Encoder().encode
T = TypeVar("T")


class WaitingOwner:
    """Keeps the rows of this scheduler its own, and takes over those of silent schedulers."""

    def __init__(self, queue: WaitingQueue, backlog: RequestBacklog, clock: Clock) -> None:
        self._queue = queue
        self._backlog = backlog
        self._store = queue.store
        self._rows = queue.store.rows
        self._clock = clock
        # owner → number of its last heartbeat, and when this number changed
        self._received: dict[str, tuple[int, float]] = {}
        self._compared = 0  # `unknown_commits` at the last comparison with the database
        self._missing: set[Id] = set()  # requests that were stored then, and not in memory

    async def beat(self) -> None:
        """Store this scheduler's heartbeat if it owns waiting requests, read the other schedulers'
        heartbeats, and take over the waiting requests of silent schedulers.
        """
        with self._rows.noting_unknown_commits():
            await self._beat()

    async def _beat(self) -> None:
        store, rows = self._store, self._rows
        unknown = rows.unknown_commits
        before = {*store.requests}
        async with rows.database.write() as tx:
            if store.requests or rows.is_registered:
                self._backlog.measure_starts()
                await rows.live(tx, store.starts.encoded())
                served = _encode(self._backlog.served()).decode()
                await queued.SERVED(tx, owner=rows.name, served=served)
            found: list[QueuedRequest] = []
            if rows.taken_for_dead or unknown != self._compared:
                found = await self._compare(tx, before)
            others = [scheduler for scheduler in await queued.roster(tx) if scheduler.owner != rows.name]
            cancelled = await queued.cancelled(tx, rows.name)
            if cancelled:
                await queued.drop(tx, cancelled)
        store.leave(cancelled)
        if rows.taken_for_dead:  # an adoption that began before this heartbeat may commit after it
            rows.taken_for_dead = False
            rows.unknown_commits += 1
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
        ours = await queued.owned(tx, self._rows.name)
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
        return await queued.owned_of(tx, self._rows.name, again)

    async def sweep(self) -> None:
        """Evaluate all hosts for all waiting requests, in case a change of a host or a quota was missed. Also
        check again which requests hold hosts that a former owner claimed, and compare the stored requests
        with those in memory.
        """
        store = self._store
        self._rows.unknown_commits += 1
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
            async with self._rows.database.write() as tx:
                await queued.RELEASE(tx, owner=self._rows.name)
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
        store, rows, several = self._store, self._rows, 0
        if before.beat >= 0:
            async with rows.database.write() as tx:
                if not await queued.END(tx, owner=before.owner, beat=before.beat):
                    return  # it goes on, or another scheduler has recorded its end
            before = structs.replace(before, beat=queued.ENDED)
        store.starts.adopt([before.starts])
        adopt = partial(queued.adopt, owner=rows.name, before=before, limit=PAGE)
        async for page in self._pages(adopt, until):
            adopted = [entry for entry in page if entry is not None]
            for entry in adopted:
                store.enter_again(entry)
            store.doubt(adopted)
            several += len(page)
        async with rows.database.read() as tx:
            depths = await queued.depths(tx, before.owner)
        for projects in _in_pages(depths):
            adopt_new = partial(
                queued.adopt_new, owner=rows.name, before=before, projects=projects, limit=PAGE
            )
            async for new in self._pages(adopt_new, until):
                self._backlog.stored.on_adopted(new)
                several += len(new)
        async with rows.database.write() as tx:
            if await queued.BURY(tx, owner=before.owner, beat=before.beat):
                self._received.pop(before.owner, None)
        if several:
            log.warning("adopted %d requests of %s", several, before.owner)

    async def _pages(
        self, adopt: Callable[[Transaction], Awaitable[Sequence[T]]], until: float
    ) -> AsyncIterator[Sequence[T]]:
        """Let `adopt` take over rows, each page in a transaction, until none is left or the time `until`."""
        several = PAGE
        while several == PAGE and self._clock.monotonic() < until:
            async with self._rows.adding() as tx:
                page = await adopt(tx)
            yield page
            several = len(page)


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
