"""The backlog: build requests taken from the broker faster than they are placed, served in fair order.

A scheduler takes every request from the broker's queue immediately, so that a request never waits behind the
flood of another project. While few requests wait, they stay unacknowledged in memory. If more wait, all are
stored in the database and acknowledged. Requests leave in the order of `core/fair_queue.py`.

Of each project with many stored requests only the first are in memory, with their messages. A row is deleted
after its request was placed, refused or stored as waiting. After a crash it is handled again, which is as
harmless as a redelivery.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

import msgspec
from prometheus_client import Gauge

from bus.clock import Clock
from bus.errors import NOT_JSON, Unavailable
from bus.protocol import Delivery, Envelope, Inbox
from bus.sql.database import Database
from bus.sql.failures import retrying
from bus.sql.transaction import Transaction
from scheduler_worker.core.fair_queue import FairItem, FairQueue, Key, RequestHead
from scheduler_worker.store import backlog
from scheduler_worker.store.backlog import BacklogRow, RowId

log = logging.getLogger(__name__)

BOUND = 256  # requests that wait in memory only; if more wait, all are stored
STORED_AT_ONCE = 512
PREFETCH = 1536  # unacknowledged: being handled, in memory, and being stored
MOST_READ = 512  # stored requests of a project in memory
LEAST_READ = 256  # if fewer are left in memory, the following ones are read
ADOPTED_AT_ONCE = 2000
PATIENCE = 1.0  # seconds before the next try after the database was unreachable

BACKLOG = Gauge("berth_scheduler_backlog", "requests in this scheduler's backlog, by project", ["project"])

_head = msgspec.json.Decoder(RequestHead).decode


@dataclass(slots=True, eq=False)
class StoredDelivery:
    """A request of the backlog in the hands of a handler, like a message of the broker."""

    envelope: Envelope
    row: RowId
    project: str
    backlog: "Backlog"
    problem: str = ""
    crashes: int = 0
    is_settled: bool = False

    def done(self) -> None:
        if not self.is_settled:
            self.is_settled = True
            self.backlog.on_done(self)

    def requeue(self) -> None:
        if not self.is_settled:
            self.backlog.put_back(self)


@dataclass(slots=True, eq=False)
class _Stored:
    """The stored requests of one project that this scheduler serves."""

    depth: int = 0  # rows
    known: set[RowId] = field(default_factory=set)  # rows in memory, in the hands of a handler, or done
    last: Key | None = None  # of the rows in memory, when the last ones were read or left out

    @property
    def unread(self) -> int:
        return self.depth - len(self.known)


class Backlog:
    """The inbox of a scheduler's build requests, in fair order.

    `live` stores the scheduler's heartbeat in a transaction; `capacity_of` returns the cloud's capacity of a
    resource class.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        owner: str,
        live: Callable[[Transaction], Awaitable[None]],
        capacity_of: Callable[[str], float],
    ) -> None:
        self._database = database
        self._clock = clock
        self._owner = owner
        self._live = live
        self._capacity_of = capacity_of
        self._weights: Mapping[str, float] = {}
        self._queue = FairQueue(self.weight_of)
        self._inbox: Inbox | None = None
        self._unstored: dict[FairItem, None] = {}  # in the queue, and unacknowledged
        self._unusual: deque[Delivery] = deque()  # invalid or redelivered ones, for the handler of the bus
        self._projects: dict[str, _Stored] = {}
        self._done: list[StoredDelivery] = []
        self._low: dict[str, None] = {}  # projects of which few stored requests are in memory
        self._opened, self._more, self._due = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._intake: asyncio.Task[None] | None = None
        self._add = retrying(clock)(self._add_once)

    def weight_of(self, project: str) -> float:
        return self._weights.get(project, self._weights.get("", 1.0))

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the weights of projects; "" is the weight of all others."""
        if weights != self._weights:
            self._weights = weights
            self._queue.reweigh()

    @property
    def depths(self) -> dict[str, int]:
        """Return how many stored requests of each project this scheduler has to serve."""
        return {project: stored.depth for project, stored in self._projects.items()}

    # The inbox

    async def open(self, inbox: Inbox) -> Inbox:
        """Begin to take messages from the broker's queue; return the inbox that gives them in fair order."""
        self._inbox = inbox
        self._opened.set()
        return self

    @property
    def buffered(self) -> int:
        assert self._inbox is not None
        return self._inbox.buffered + len(self._unstored) + len(self._unusual)

    async def get(self) -> Delivery:
        while (delivery := self.get_nowait()) is None:
            self._more.clear()
            await self._more.wait()
        return delivery

    def get_nowait(self) -> Delivery | None:
        if self._unusual:
            return self._unusual.popleft()
        item = self._queue.pop()
        if item is None:
            return None
        self._unstored.pop(item, None)
        stored = self._projects.get(item.project)
        if stored is not None and stored.unread and self._queue.count(item.project) < LEAST_READ:
            self._low[item.project] = None
            self._due.set()
        delivery: Delivery = item.value
        item.is_live = False
        return delivery

    async def stop(self) -> None:
        """Stop reading the queue, and requeue the messages that were not stored."""
        assert self._inbox is not None
        if self._intake is not None:
            self._intake.cancel()
            with suppress(asyncio.CancelledError):
                await self._intake
        await self._inbox.stop()
        for delivery in (*self._unusual, *(item.value for item in self._unstored)):
            delivery.requeue()
        self._unusual.clear()
        self._unstored.clear()

    # Background tasks

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._intake = group.create_task(self._take_in())
            group.create_task(self._keep_up())

    async def _take_in(self) -> None:
        await self._opened.wait()
        assert self._inbox is not None
        while True:
            first = await self._inbox.get()
            arrived = [first, *islice(iter(self._inbox.get_nowait, None), STORED_AT_ONCE - 1)]
            items = []
            for delivery in arrived:
                item = self._item(delivery)
                if item is None:
                    self._unusual.append(delivery)
                else:
                    items.append(item)
            if self._projects or len(self._unstored) + len(items) > BOUND:
                await self._store(items)
            else:
                self._enter(items)
            self._more.set()

    def _item(self, delivery: Delivery) -> FairItem | None:
        """Return a new item of the queue, or None for a message that the bus must handle in its way."""
        envelope = delivery.envelope
        if delivery.problem or delivery.crashes or envelope.suspect_of:
            return None
        try:
            head = _head(envelope.body)
            bytes(envelope.body).decode()
        except NOT_JSON:
            return None
        now = self._clock.now()
        key = (-head.priority, min(envelope.sent_at or now, now), head.request)
        return FairItem(head.project, key, self._size(head), delivery, head.builds)

    def _size(self, head: RequestHead) -> dict[str, float]:
        capacities = ((name, amount, self._capacity_of(name)) for name, amount in head.amounts().items())
        return {name: amount / capacity for name, amount, capacity in capacities if amount and capacity}

    def _enter(self, items: Sequence[FairItem]) -> None:
        for item in items:
            self._queue.push(item)
            self._unstored[item] = None

    async def _store(self, items: Sequence[FairItem]) -> None:
        """Store these new requests, and all that wait in memory only; then acknowledge them."""
        self._enter(items)
        self._more.set()
        waiting = {_row_id(item): item for item in self._unstored}
        try:
            added = await self._add([_row_of(item) for item in waiting.values()])
        except Unavailable as away:
            log.warning("the backlog cannot be stored: %s", away)
            await asyncio.sleep(PATIENCE)
            return
        for row, item in waiting.items():
            was_taken, delivery = item not in self._unstored, item.value
            self._unstored.pop(item, None)
            if row in added:
                stored = self._projects.setdefault(item.project, _Stored())
                stored.depth += 1
                stored.known.add(row)
                item.value = StoredDelivery(delivery.envelope, row, item.project, self)
            elif not was_taken:  # an equal request is in the backlog
                item.is_live = False
            if not was_taken:
                delivery.done()
            elif row in added:  # a handler has the message of the broker
                item.value.done()
        for item in [item for item in self._unstored if _row_id(item) in waiting]:  # sent twice in one batch
            del self._unstored[item]
            item.is_live = False
            item.value.done()
        for project in {item.project for item in waiting.values()}:
            self._leave_out(project)

    def _leave_out(self, project: str) -> None:
        """Leave out of memory the last stored requests of a project, and those behind unread ones."""
        stored = self._projects.get(project)
        if stored is None or not self._queue.count(project):
            return
        removed = self._queue.trim(project, MOST_READ, stored.last if stored.unread else None)
        for item in removed:
            stored.known.discard(item.value.row)
        if removed and self._queue.count(project):
            stored.last = self._queue.last_key(project)

    def on_done(self, delivery: StoredDelivery) -> None:
        self._done.append(delivery)
        self._due.set()

    def put_back(self, delivery: StoredDelivery) -> None:
        """Return a stored request to the queue after its handler ended without a result."""
        if delivery.row in self._known(delivery.project) and (item := self._item(delivery)) is not None:
            self._queue.push(item)
            self._more.set()

    def _known(self, project: str) -> set[RowId]:
        stored = self._projects.get(project)
        return set() if stored is None else stored.known

    async def _keep_up(self) -> None:
        """Delete the rows of requests that were handled, and read the following ones."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self.flush()
                while self._low:
                    await self._read(next(iter(self._low)))
            except Unavailable as away:
                log.warning("the backlog waits for its database: %s", away)
                self._due.set()
                await asyncio.sleep(PATIENCE)

    async def flush(self) -> None:
        """Delete the rows of requests that were handled."""
        done, self._done = self._done, []
        if not done:
            return
        try:
            await self._drop([delivery.row for delivery in done])
        except BaseException:
            self._done += done
            raise
        for delivery in done:
            stored = self._projects.get(delivery.project)
            if stored is not None and delivery.row in stored.known:
                stored.known.discard(delivery.row)
                stored.depth -= 1
                if not stored.depth:
                    del self._projects[delivery.project]

    async def _drop(self, rows: Sequence[RowId]) -> None:
        async with self._database.write() as tx:
            await backlog.drop(tx, rows)

    async def _add_once(self, rows: Sequence[BacklogRow]) -> set[RowId]:
        added = set[RowId]()
        for first in range(0, len(rows), STORED_AT_ONCE):
            async with self._database.write() as tx:
                await self._live(tx)
                added |= await backlog.add(tx, self._owner, rows[first : first + STORED_AT_ONCE])
        return added

    async def _read(self, project: str) -> None:
        """Read the following stored requests of a project into memory if few are left there."""
        stored = self._projects.get(project)
        if stored is None or stored.unread <= 0 or self._queue.count(project) >= LEAST_READ:
            self._low.pop(project, None)
            return
        most = MOST_READ + len(stored.known)
        async with self._database.read() as tx:
            rows = await backlog.following(tx, self._owner, project, most)
        self._low.pop(project, None)
        if len(rows) < most:
            stored.depth = len(stored.known.union(row.id for row in rows))
        for row in rows:
            if row.id in stored.known:
                continue
            stored.known.add(row.id)
            delivery = StoredDelivery(row.opened(), row.id, project, self)
            item = self._item(delivery)
            if item is None:
                self._unusual.append(delivery)
            else:
                self._queue.push(item)
        if self._queue.count(project):
            stored.last = self._queue.last_key(project)
        self._more.set()

    # Ownership

    async def adopt(self, before: str) -> int:
        """Take over the stored requests of another scheduler; return how many."""
        adopted, more = 0, True
        while more:
            async with self._database.write() as tx:
                count = await backlog.adopt(tx, self._owner, before, ADOPTED_AT_ONCE)
                await self._live(tx)
            adopted, more = adopted + count, count == ADOPTED_AT_ONCE
        if adopted:
            await self.count()
        return adopted

    async def count(self) -> None:
        """Read how many stored requests of each project this scheduler has to serve."""
        async with self._database.read() as tx:
            depths = await backlog.depths(tx, self._owner)
        for project, depth in depths.items():
            stored = self._projects.setdefault(project, _Stored())
            stored.depth = max(depth, len(stored.known))
            self._low[project] = None
        self._due.set()

    async def release(self) -> None:
        """Delete the rows that are done, and release the others for another scheduler."""
        await self.flush()
        if self._projects:
            async with self._database.write() as tx:
                await backlog.RELEASE(tx, owner=self._owner)


def _row_id(item: FairItem) -> RowId:
    return item.key[2], item.value.envelope.attempt


def _row_of(item: FairItem) -> BacklogRow:
    envelope = item.value.envelope
    priority, since, request = item.key
    text = backlog.encode(envelope).decode()
    return BacklogRow(request, envelope.attempt, item.project, -priority, since, text, item.builds)
