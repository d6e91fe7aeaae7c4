"""The stored requests of this scheduler that were not evaluated yet.

In memory are only the first ones of each project. A row is deleted after its request was handled: placed,
refused, or stored as one that waits. After a crash requests are handled again, as after a redelivery; so are
those that another scheduler has adopted while this one was paused. A row counts the schedulers that ended
with it; if there were two, the bus handles its request alone.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from operator import attrgetter

from prometheus_client import Gauge

from bus.clock import Clock
from bus.errors import Unavailable
from bus.protocol import Envelope
from bus.sql.failures import Conflict, retrying
from bus.sql.statement import Transaction
from features.waiting.core.fair_queue import FairItem, FairQueue
from features.waiting.core.shares import Size
from features.waiting.core.start_times import NewCounts
from features.waiting.owned_rows import OwnedRows
from features.waiting.results import PATIENCE
from features.waiting.tables import queued
from features.waiting.tables.queued import FIRST, LAST, NewId, NewKey, NewRequest

log = logging.getLogger(__name__)

LEAST_READ = 256  # if fewer requests of a project are in memory, the following ones are read
MOST_READ = 4096  # most requests of a project in memory; divided among projects, but at least LEAST_READ each
READ_AT_ONCE = 2048  # most requests read at a time: decoding them blocks the event loop for milliseconds
SUSPECT_READ = 64  # suspect requests read at a time: few, as all are suspects if this scheduler ends too

BACKLOG = Gauge("berth_scheduler_backlog", "stored requests of this scheduler that were not evaluated yet")
PROJECTS = Gauge("berth_scheduler_backlog_projects", "projects that have requests in the backlog")


@dataclass(slots=True, eq=False)
class StoredDelivery:
    """A stored request that was given to a handler, like a message of the broker."""

    envelope: Envelope
    id: NewId
    project: str
    priority: int
    requests: "StoredRequests"
    problem: str = ""
    crashes: int = 0
    is_settled: bool = False

    def done(self) -> None:
        if not self.is_settled:
            self.is_settled = True
            self.requests.on_done(self)

    def requeue(self) -> None:
        if not self.is_settled:
            self.requests.push(self)


@dataclass(slots=True, eq=False)
class StoredProject:
    """The stored requests of one project."""

    rows: int = 0  # number of stored requests
    counts: NewCounts = field(default_factory=NewCounts)
    open: set[NewId] = field(default_factory=set)  # stored requests that were read, or never left memory
    next: NewKey = FIRST  # all requests that were not read have this key or a later one
    added: NewKey = LAST  # the lowest key of the requests that were added to those during the present read
    is_suspect: bool = False  # True if a scheduler ended while it owned the unread requests

    @property
    def is_unread(self) -> bool:
        return self.rows > len(self.open)

    def add(self, row: NewRequest, *, into_memory: bool) -> None:
        """Count a further stored request."""
        if into_memory:
            self.open.add(row.id)
        else:
            self.next = min(self.next, row.key) if self.is_unread else row.key
            self.added = min(self.added, row.key)
        self.rows += 1
        self.counts.left[row.priority] += 1


class StoredRequests:
    """Stores requests and reads them into `queue`."""

    def __init__(
        self, rows: OwnedRows, clock: Clock, queue: FairQueue, size_of: Callable[[Envelope], Size]
    ) -> None:
        self.projects: dict[str, StoredProject] = {}
        self.more = asyncio.Event()  # set when the queue may have requests
        self._rows = rows
        self._database = rows.database
        self._queue = queue
        self._size_of = size_of
        self._low: dict[str, None] = {}  # projects with few stored requests in memory
        self._ended: list[StoredDelivery] = []  # handled, and still stored
        self._due = asyncio.Event()
        self.add = retrying(clock)(self._add_once)
        self._drop = retrying(clock)(self._drop_once)

    @property
    def _most_in_memory(self) -> int:
        """Return how many requests of each project may be in memory."""
        return max(LEAST_READ, MOST_READ // len(self.projects))

    def _to_read(self, project: str) -> int:
        """Return how many further requests of a project to read; 0 if enough of them are in memory for a
        batch, which may take hundreds.
        """
        stored = self.projects.get(project)
        if stored is None or not stored.is_unread:
            return 0
        ahead = SUSPECT_READ if stored.is_suspect else self._most_in_memory
        return 0 if self._queue.count(project) >= ahead else min(ahead, READ_AT_ONCE)

    def has_unread(self, project: str) -> bool:
        """Return whether the database has requests of the project that are not in memory."""
        stored = self.projects.get(project)
        return stored is not None and stored.is_unread

    async def _add_once(self, requests: Sequence[NewRequest]) -> dict[NewId, str]:
        """Store new requests; return the owner of each."""
        async with self._rows.adding() as tx:
            return await queued.add_new(tx, self._rows.name, requests)

    async def _drop_once(self, requests: Collection[NewId]) -> None:
        async with self._database.write() as tx:
            await queued.drop_new(tx, self._rows.name, requests)

    def on_stored(self, row: NewRequest, envelope: Envelope) -> None:
        """Record a request that was stored now. Put it into the queue, unless unread requests precede it or
        many are in memory.
        """
        stored = self.projects.setdefault(row.project, StoredProject())
        if row.id in stored.open:
            return  # an earlier delivery was stored
        is_first = not stored.is_unread or row.key < stored.next
        into_memory = is_first and self._queue.count(row.project) < self._most_in_memory
        stored.add(row, into_memory=into_memory)
        if into_memory:
            self.push(StoredDelivery(envelope, row.id, row.project, row.priority, self))

    def on_adopted(self, rows: Iterable[NewRequest]) -> None:
        """Record requests that this scheduler has taken over, and let them be read."""
        for row in rows:
            stored = self.projects.setdefault(row.project, StoredProject())
            if row.id not in stored.open:  # another scheduler had adopted it from this one
                stored.add(row, into_memory=False)
                stored.is_suspect = True
                self._low[row.project] = None
        self._due.set()

    def on_taken(self, project: str) -> None:
        """Start to read further requests of a project if few are left in memory."""
        if self._to_read(project):
            self._low[project] = None
            self._due.set()

    def push(self, delivery: StoredDelivery, *, continues: bool = False) -> None:
        """Put a stored request into the queue. With `continues`, its project had further requests in the
        database while it had none in the queue, so the project keeps its share.
        """
        envelope = delivery.envelope
        request, _ = delivery.id
        key = (-delivery.priority, envelope.sent_at, request)
        item = FairItem(delivery.project, key, self._size_of(envelope), delivery)
        self._queue.push(item, continues=continues)
        self.more.set()

    def on_done(self, delivery: StoredDelivery) -> None:
        if (stored := self.projects.get(delivery.project)) is not None:
            stored.counts.on_done(delivery.priority)
        self._ended.append(delivery)
        self._due.set()

    async def run(self) -> None:
        """Delete the requests that were handled, and read the following ones."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                while self._low:
                    await self._read(next(iter(self._low)))
                await self.flush()
            except (Conflict, Unavailable) as away:
                log.warning("the backlog waits for its database: %s", away)
                self._due.set()
                await asyncio.sleep(PATIENCE)

    async def flush(self) -> None:
        """Delete the requests that were handled."""
        ended, self._ended = self._ended, []
        if not ended:
            return
        try:
            await self._drop({delivery.id for delivery in ended})
        except BaseException:
            self._ended += ended
            raise
        for delivery in ended:
            stored = self.projects.get(delivery.project)
            if stored is not None and delivery.id in stored.open:
                stored.open.remove(delivery.id)
                stored.rows -= 1
                if not stored.rows:
                    del self.projects[delivery.project]

    async def _read(self, project: str) -> None:
        """Read the next requests of a project if few of them are left in the queue."""
        most = self._to_read(project)
        if not most:
            self._low.pop(project, None)
            return
        stored = self.projects[project]
        stored.added = LAST
        async with self._database.read() as tx:
            rows = await queued.following(tx, self._rows.name, project, stored.next, most)
        if len(rows) < most and stored.added == LAST:
            stored.rows = len(stored.open | {row.id for row in rows})
            if not stored.rows:
                del self.projects[project]
        unread = [row for row in rows if row.id not in stored.open]
        stored.is_suspect = any(row.strikes for row in unread)
        if unread and unread[0].strikes:
            unread = list(takewhile(attrgetter("strikes"), unread[:SUSPECT_READ]))
            strikes = {row.id: row.strikes + 1 for row in unread}
            async with self._database.write() as tx:
                await queued.strike(tx, self._rows.name, strikes)
        else:
            unread = list(takewhile(lambda row: not row.strikes, unread))
        self._low.pop(project, None)
        if last := (unread or rows)[-1:]:
            stored.next = min(last[0].key, stored.added)
        for row in unread:
            stored.open.add(row.id)
            delivery = StoredDelivery(row.envelope, row.id, project, row.priority, self, crashes=row.strikes)
            self.push(delivery, continues=True)
        if not unread and stored.is_unread:
            self._low[project] = None  # only requests in memory were read

    async def recount(self, tx: Transaction) -> None:
        """Let the requests be read that are stored for this scheduler, and that it does not know: the commit
        that stored or adopted them seemed to fail.
        """
        found = sorted(await queued.depths(tx, self._rows.name))
        for project, of_project in groupby(found, attrgetter("project")):
            left = Counter({depth.priority: depth.requests for depth in of_project})
            stored = self.projects.setdefault(project, StoredProject())
            if left.total() <= stored.rows:
                continue
            stored.rows = left.total()
            stored.counts = NewCounts(left)
            stored.next = stored.added = FIRST
            stored.is_suspect = True
            self._low[project] = None
        self._due.set()

    def measure(self) -> None:
        """Set the metrics of the stored requests."""
        BACKLOG.set(sum(stored.counts.left.total() for stored in self.projects.values()))
        PROJECTS.set(len(self.projects))
