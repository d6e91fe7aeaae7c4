"""The stored part of the backlog: the bundles of requests in the database that this scheduler serves.

In memory are only the first bundles of each project. A bundle is deleted after each of its requests was
placed, refused or stored as waiting. After a crash its requests are handled again, as after a redelivery. The
bundle counts the schedulers that ended with it; if there were two, the bus handles each of its requests
alone.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from operator import attrgetter

from prometheus_client import Gauge

from bus.clock import Clock
from bus.errors import Unavailable
from bus.protocol import Envelope
from bus.sql.database import Database
from bus.sql.failures import Conflict, retrying
from bus.sql.statement import Transaction
from bus.vocabulary import Id
from features.waiting.core.backlog_paces import BacklogCounts, BacklogPace, BacklogPaces
from features.waiting.core.fair_queue import FairItem, FairQueue, Key, ShareMeter, Size
from features.waiting.start_estimates import show_calibration
from features.waiting.tables import backlog
from features.waiting.tables.backlog import Bundle, Depth

log = logging.getLogger(__name__)

LEAST_READ = 256  # if fewer requests of a project are in memory, the following bundles are read
MOST_READ = 4096  # most requests of a project in memory; divided among projects, but at least LEAST_READ each
READ_FOR = 128  # for every so many requests that should be in memory, one bundle is read at a time
READ_AT_ONCE = 8  # most bundles read at a time: decoding each blocks the event loop for milliseconds
SUSPECT_READ = 64  # requests read from suspect bundles: few, as all are suspects if this scheduler ends too
PATIENCE = 1.0  # seconds before a retry if the database is unreachable

BACKLOG = Gauge("berth_scheduler_backlog", "stored requests of this scheduler that were not evaluated yet")
PROJECTS = Gauge("berth_scheduler_backlog_projects", "projects that have requests in the backlog")
DEVIATION = Gauge(
    "berth_scheduler_share_deviation",
    "largest relative deviation of a project's served share from its weight, over a minute with a backlog",
)


@dataclass(slots=True, eq=False)
class OpenBundle:
    """A stored bundle in memory, with the number of its requests that are not handled yet."""

    id: Id
    project: str
    priority: int
    left: int


@dataclass(slots=True, eq=False)
class StoredDelivery:
    """A stored request that was given to a handler, like a message of the broker."""

    envelope: Envelope
    bundle: OpenBundle
    requests: "StoredRequests"
    problem: str = ""
    crashes: int = 0
    is_settled: bool = False

    def done(self) -> None:
        if not self.is_settled:
            self.is_settled = True
            self.requests.on_done(self.bundle)

    def requeue(self) -> None:
        if not self.is_settled:
            self.requests.push(self)


@dataclass(slots=True, eq=False)
class StoredProject:
    """The stored requests of one project."""

    bundles: int = 0  # number of stored bundles
    counts: BacklogCounts = field(default_factory=BacklogCounts)
    open: dict[Id, OpenBundle] = field(default_factory=dict)  # bundles in memory, by id
    last: Key | None = None  # key of the bundle that was read last
    is_suspect: bool = False  # True if a scheduler ended while it owned the unread bundles

    @property
    def is_unread(self) -> bool:
        return self.bundles > len(self.open)


class StoredRequests:
    """Stores requests and reads them into `queue`. `live` stores this scheduler's heartbeat in the same
    transaction, so that no other scheduler takes the requests over.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        owner: str,
        live: Callable[[Transaction], Awaitable[None]],
        queue: FairQueue,
        size_of: Callable[[Envelope], Size],
    ) -> None:
        self.projects: dict[str, StoredProject] = {}
        self.more = asyncio.Event()  # set when the queue may have requests
        self._database = database
        self._clock = clock
        self._shares = ShareMeter()
        self.paces = BacklogPaces()
        self._owner = owner
        self._live = live
        self._queue = queue
        self._size_of = size_of
        self._low: dict[str, None] = {}  # projects with few stored requests in memory
        self._ended: list[OpenBundle] = []
        self._due = asyncio.Event()
        self.add = retrying(clock)(self._add_once)

    def _to_read(self, project: str) -> int:
        """Return how many further bundles of a project to read; 0 if enough of its requests are in memory for
        a batch, which may take hundreds.
        """
        stored = self.projects.get(project)
        if stored is None or not stored.is_unread:
            return 0
        ahead = SUSPECT_READ if stored.is_suspect else max(LEAST_READ, MOST_READ // len(self.projects))
        if self._queue.count(project) >= ahead:
            return 0
        return max(min(ahead // READ_FOR, READ_AT_ONCE), 1)

    def has_unread(self, project: str) -> bool:
        stored = self.projects.get(project)
        return stored is not None and stored.is_unread

    async def _add_once(self, bundles: Sequence[Bundle]) -> None:
        """Store bundles of new requests."""
        async with self._database.write() as tx:
            await self._live(tx)
            await backlog.add(tx, self._owner, bundles)

    def on_stored(self, bundle: Bundle) -> OpenBundle | None:
        """Record a new bundle. Return it if its requests may enter the queue now, because no unread request
        precedes them; else None.
        """
        stored = self.projects.setdefault(bundle.project, StoredProject())
        opened = None
        if self._queue.count(bundle.project) < MOST_READ and (
            not stored.is_unread or stored.last is None or bundle.key < stored.last
        ):
            opened = OpenBundle(bundle.id, bundle.project, bundle.priority, bundle.requests)
            if not stored.is_unread:
                stored.last = max(stored.last or bundle.key, bundle.key)
            stored.open[bundle.id] = opened
        stored.bundles += 1
        stored.counts.on_stored(bundle.priority, bundle.requests)
        return opened

    def on_taken(self, project: str) -> None:
        """Count a request that was given to a handler while requests are stored. Start to read further
        requests of its project if few are left in memory.
        """
        if (stored := self.projects.get(project)) is not None:
            stored.counts.taken += 1
        if self._to_read(project):
            self._low[project] = None
            self._due.set()

    def push(self, delivery: StoredDelivery, *, continues: bool = False) -> None:
        """Put a stored request into the queue. With `continues`, its project had further requests in the
        database while it had none in the queue, so the project keeps its share.
        """
        envelope, bundle = delivery.envelope, delivery.bundle
        key = (-bundle.priority, envelope.sent_at, envelope.id)
        item = FairItem(bundle.project, key, self._size_of(envelope), delivery)
        self._queue.push(item, continues=continues)
        self.more.set()

    def on_done(self, bundle: OpenBundle) -> None:
        bundle.left -= 1
        if (stored := self.projects.get(bundle.project)) is not None:
            stored.counts.on_done(bundle.priority)
        if not bundle.left:
            self._ended.append(bundle)
            self._due.set()

    async def run(self) -> None:
        """Delete the bundles with only handled requests, and read the following bundles."""
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
        """Delete the bundles with only handled requests."""
        ended, self._ended = self._ended, []
        if not ended:
            return
        try:
            async with self._database.write() as tx:
                await backlog.drop(tx, [bundle.id for bundle in ended])
        except BaseException:
            self._ended += ended
            raise
        for bundle in ended:
            stored = self.projects.get(bundle.project)
            if stored is not None and stored.open.pop(bundle.id, None) is not None:
                stored.bundles -= 1
                if not stored.bundles:
                    del self.projects[bundle.project]

    async def _read(self, project: str) -> None:
        """Read the next bundles of a project if few of its requests are left in the queue."""
        read = self._to_read(project)
        if not read:
            self._low.pop(project, None)
            return
        stored = self.projects[project]
        most, before = read + len(stored.open), stored.bundles
        async with self._database.read() as tx:
            bundles = await backlog.following(tx, self._owner, project, most)
        if len(bundles) < most and stored.bundles == before:  # none was stored during the read
            stored.bundles = len(stored.open.keys() | {bundle.id for bundle in bundles})
        bundles = [bundle for bundle in bundles if bundle.id not in stored.open]
        stored.is_suspect = any(bundle.strikes for bundle in bundles)
        bundles = list(takewhile(lambda bundle: not bundle.strikes, bundles)) or bundles[:1]
        if bundles and bundles[0].strikes:
            async with self._database.write() as tx:
                await backlog.strike(tx, [bundles[0].id])
        self._low.pop(project, None)
        for bundle in bundles:
            stored.last = bundle.key
            opened = OpenBundle(bundle.id, project, bundle.priority, bundle.requests)
            stored.open[bundle.id] = opened
            for envelope in bundle.opened():
                self.push(StoredDelivery(envelope, opened, self, crashes=bundle.strikes), continues=True)

    def abandon(self, bundles: Sequence[Bundle]) -> None:
        """Delete bundles that could not be stored: their commit may have succeeded nevertheless."""
        self._ended += [OpenBundle(bundle.id, bundle.project, bundle.priority, 0) for bundle in bundles]
        self._due.set()

    async def adopt(self, before: str) -> int:
        """Take over the stored requests of the scheduler `before`; return how many."""
        async with self._database.write() as tx:
            adopted = await backlog.adopt(tx, self._owner, before)
            if adopted:
                await self._live(tx)
            depths = await backlog.depths(tx, self._owner) if adopted else []
        self._read_adopted(depths)
        return adopted

    async def recount(self, tx: Transaction) -> None:
        """Read the stored requests that this scheduler does not know: the commit that gave them to it seemed
        to fail.
        """
        bundles = Counter[str]()
        depths = await backlog.depths(tx, self._owner)
        for depth in depths:
            bundles[depth.project] += depth.bundles
        known = {project: stored.bundles for project, stored in self.projects.items()}
        self._read_adopted([each for each in depths if bundles[each.project] > known.get(each.project, 0)])

    def _read_adopted(self, depths: Sequence[Depth]) -> None:
        """Let all bundles of the projects in `depths` be read."""
        for project, of_project in groupby(sorted(depths), attrgetter("project")):
            by_priority = {depth.priority: depth for depth in of_project}
            stored = self.projects.setdefault(project, StoredProject())
            bundles = sum(depth.bundles for depth in by_priority.values())
            stored.bundles = max(bundles, len(stored.open))
            stored.counts = BacklogCounts(
                Counter({priority: depth.requests for priority, depth in by_priority.items()})
            )
            stored.is_suspect = True
            self._low[project] = None
        self._due.set()

    async def release(self) -> None:
        """Delete the bundles with only handled requests, and leave all other bundles to another scheduler."""
        await self.flush()
        if self.projects:
            async with self._database.write() as tx:
                await backlog.RELEASE(tx, owner=self._owner)

    def measure(self) -> None:
        """Set the metrics of the stored requests, and of the shares in which their projects are served."""
        BACKLOG.set(sum(stored.counts.left.total() for stored in self.projects.values()))
        PROJECTS.set(len(self.projects))
        self._shares.measure(self._queue.progress(self.projects), self._clock.monotonic())
        DEVIATION.set(self._shares.deviation)
        show_calibration("backlog", self.paces.calibration)

    def measured(self, unstored: Mapping[str, int]) -> dict[str, BacklogPace]:
        """Measure how fast each project is served, of which `unstored` requests are only in memory. Return
        the paces to store.
        """
        counts = {project: stored.counts for project, stored in self.projects.items()}
        return self.paces.measure(counts, unstored, self._clock.monotonic())
