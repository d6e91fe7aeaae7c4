"""The backlog: build requests taken from the broker faster than they are placed, served in fair order.

A scheduler takes every request from the broker's queue immediately, so that a request never waits behind the
flood of another project. While few requests wait, they stay unacknowledged in memory. If more wait, all are
stored in the database and acknowledged, and later ones of their projects too. Requests leave in the order of
`core/fair_queue.py`. While some are stored, a project with few requests need not wait until a large batch of
other projects is placed: its requests are handled in parallel, when it is their turn.

Of each project with many stored requests only the first bundles are in memory. A bundle is deleted after each
of its requests was placed, refused or stored as waiting. After a crash its requests are handled again, as
after a redelivery.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from bus.clock import Clock
from bus.errors import NOT_JSON, Unavailable
from bus.protocol import Delivery, Envelope, Inbox
from bus.sql.database import Database
from bus.sql.failures import retrying
from bus.sql.transaction import Transaction
from bus.vocabulary import UNSAID_ID, Id
from scheduler_worker.core.fair_queue import FairItem, FairQueue, Key
from scheduler_worker.request_sizes import RequestSizes
from scheduler_worker.store import backlog
from scheduler_worker.store.backlog import Bundle

log = logging.getLogger(__name__)

BOUND = 256  # requests that wait in memory only; if more wait, all are stored
TAKEN_AT_ONCE = 2048
PREFETCH = 4096  # unacknowledged: being handled, in memory, and being stored
MOST_BUNDLED = 256
LEAST_READ = 256  # if fewer requests of a project are in memory, the following bundles are read
MOST_READ = 4096
READ_AT_ONCE = 2  # bundles
PATIENCE = 1.0  # seconds before the next try after the database was unreachable
CALLS_OF_LIGHT = 2  # concurrent handler calls, only with requests of projects that have few
LIGHT = 16  # requests of a project that has few
SERVED_AT_ONCE = 128  # while requests are stored: the others wait until a batch is placed
# While a flood arrives, requests are placed in small batches, so that taking it in comes first.
FLOODED = 512  # requests taken at once
SERVED_IN_FLOOD = 16


class _Place(msgspec.Struct):
    """The part of a build request that decides its place in the queue."""

    project: str = UNSAID_ID
    priority: int = 0


_place = msgspec.json.Decoder(_Place).decode


@dataclass(slots=True, eq=False)
class _Open:
    """A stored bundle in memory, with the number of its requests that were not handled."""

    id: Id
    project: str
    left: int


@dataclass(slots=True, eq=False)
class StoredDelivery:
    """A request of the backlog in the hands of a handler, like a message of the broker."""

    envelope: Envelope
    bundle: _Open
    backlog: "Backlog"
    problem: str = ""
    crashes: int = 0
    is_settled: bool = False

    def done(self) -> None:
        if not self.is_settled:
            self.is_settled = True
            self.backlog.on_done(self.bundle)

    def requeue(self) -> None:
        if not self.is_settled:
            self.backlog.put_back(self)


@dataclass(slots=True, eq=False)
class _Stored:
    """The stored requests of one project that this scheduler serves."""

    bundles: int = 0  # rows
    requests: int = 0
    open: dict[Id, _Open] = field(default_factory=dict)  # bundles in memory
    last: Key | None = None  # of the bundle that was read last

    @property
    def is_unread(self) -> bool:
        return self.bundles > len(self.open)


Arrived = tuple[FairItem | None, Delivery]  # the item if it is in the queue already


class Backlog:
    """The inbox of a scheduler's build requests, in fair order. `live` stores the scheduler's heartbeat."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        owner: str,
        live: Callable[[Transaction], Awaitable[None]],
        sizes: RequestSizes,
        calls: int,
    ) -> None:
        """Create a backlog that gives requests to `calls` concurrent handler calls, and to CALLS_OF_LIGHT."""
        self._database = database
        self._clock = clock
        self._owner = owner
        self._live = live
        self._sizes = sizes
        self._most_calls = calls
        self._weights: Mapping[str, float] = {}
        self._queue = FairQueue(self._weight_of)
        self._inbox: Inbox | None = None
        self._unstored: dict[FairItem, None] = {}  # in the queue, and unacknowledged
        self._unusual: deque[Delivery] = deque()  # invalid or redelivered ones, for the handler of the bus
        self._projects: dict[str, _Stored] = {}
        self._low: dict[str, None] = {}  # projects of which few stored requests are in memory
        self._ended: list[_Open] = []
        self._is_flooded = False
        self._is_light = False  # the present batch has only requests of projects that have few
        self._calls: set[int] = set()  # the other batches: id of the first message
        self._served = 0  # messages since the last call of `get`
        self._opened, self._more, self._due = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._intake: asyncio.Task[None] | None = None
        self._add = retrying(clock)(self._add_once)

    def _weight_of(self, project: str) -> float:
        return self._weights.get(project, self._weights.get("", 1.0))

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the weights of projects; "" is the weight of all others."""
        if weights != self._weights:
            self._weights = weights
            self._queue.reweigh()

    @property
    def depths(self) -> dict[str, int]:
        """Return how many stored requests of each project this scheduler has to serve."""
        return {project: stored.requests for project, stored in self._projects.items()}

    # The inbox

    async def open(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._opened.set()

    @property
    def buffered(self) -> int:
        assert self._inbox is not None
        return self._inbox.buffered + len(self._unstored) + len(self._unusual)

    async def get(self) -> Delivery:
        while (delivery := self._first()) is None:
            self._more.clear()
            await self._more.wait()
        return delivery

    def get_nowait(self) -> Delivery | None:
        if self._unusual:
            return self._unusual.popleft()
        if self._projects:
            most = SERVED_IN_FLOOD if self._is_flooded else SERVED_AT_ONCE
            if self._served >= most or (self._is_light and not self._is_light_next):
                return None
        return self._pop()

    def handled(self, deliveries: Sequence[Delivery]) -> None:
        """Let a batch of requests follow these, whose handler call has ended."""
        self._calls.discard(id(deliveries[0]))
        self._more.set()

    def _first(self) -> Delivery | None:
        self._served, self._is_light = 0, self._is_light_next
        if self._is_light or self._unusual:
            return self.get_nowait()
        delivery = self._pop() if len(self._calls) < self._most_calls else None
        if delivery is not None:
            self._calls.add(id(delivery))
        return delivery

    @property
    def _is_light_next(self) -> bool:
        """Return whether others are stored, and the next request is of a project that has few."""
        project = self._queue.next_project
        if not self._projects or project is None or self._queue.count(project) > LIGHT:
            return False
        stored = self._projects.get(project)
        return stored is None or not stored.is_unread

    def _pop(self) -> Delivery | None:
        if (item := self._queue.pop()) is None:
            return None
        self._served += 1
        self._unstored.pop(item, None)
        stored = self._projects.get(item.project)
        if stored is not None and stored.is_unread and self._queue.count(item.project) < LEAST_READ:
            self._low[item.project] = None
            self._due.set()
        delivery: Delivery = item.value
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

    # Taking requests in

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._intake = group.create_task(self._take_in())
            group.create_task(self._keep_up())

    async def _take_in(self) -> None:
        await self._opened.wait()
        assert self._inbox is not None
        while True:
            first = await self._inbox.get()
            arrived = [first, *islice(iter(self._inbox.get_nowait, None), TAKEN_AT_ONCE - 1)]
            self._is_flooded = len(arrived) > FLOODED
            waiting: dict[tuple[str, int], list[Arrived]] = defaultdict(list)
            now = self._clock.now()
            for delivery in arrived:
                envelope = delivery.envelope
                if (place := _place_of(delivery)) is None:
                    self._unusual.append(delivery)
                else:
                    envelope.sent_at = min(envelope.sent_at or now, now)
                    waiting[place.project, place.priority].append((None, delivery))
            if len(self._unstored) + len(arrived) <= BOUND:
                few = {place: waiting.pop(place) for place in list(waiting) if place[0] not in self._projects}
                self._enter(few)
            try:
                if waiting:
                    await self._store(waiting)
            except Unavailable as away:
                log.warning("the backlog cannot be stored: %s", away)
                await asyncio.sleep(PATIENCE)
            self._is_flooded &= self._inbox.buffered > 0

    def _enter(self, waiting: Mapping[tuple[str, int], Sequence[Arrived]]) -> None:
        """Put messages that are not stored into the queue."""
        for (project, priority), arrived in waiting.items():
            for known, delivery in arrived:
                if known is None:
                    item = self._push(project, priority, delivery)
                    self._unstored[item] = None
        self._more.set()

    def _push(self, project: str, priority: int, delivery: Delivery) -> FairItem:
        envelope = delivery.envelope
        key = (-priority, envelope.sent_at, envelope.id)
        item = FairItem(project, key, self._sizes.of(envelope.body), delivery)
        self._queue.push(item)
        return item

    async def _store(self, waiting: dict[tuple[str, int], list[Arrived]]) -> None:
        """Store these new messages, and those in memory only if they are too many; then acknowledge them."""
        if len(self._unstored) + sum(map(len, waiting.values())) > BOUND:
            for item in self._unstored:
                waiting[item.project, -item.key[0]].append((item, item.value))
        try:
            bundled = [
                (self._bundle(project, priority, some), some)
                for (project, priority), arrived in waiting.items()
                for first in range(0, len(arrived), MOST_BUNDLED)
                if (some := arrived[first : first + MOST_BUNDLED])
            ]
            await self._add([bundle for bundle, _ in bundled])
        except BaseException:
            self._enter(waiting)
            raise
        for bundle, some in bundled:
            self._on_stored(bundle, some)
        self._more.set()

    def _bundle(self, project: str, priority: int, arrived: Sequence[Arrived]) -> Bundle:
        envelopes = [delivery.envelope for _, delivery in arrived]
        return backlog.bundle(self._clock.uuid(), project, priority, envelopes)

    def _on_stored(self, bundle: Bundle, arrived: Sequence[Arrived]) -> None:
        stored = self._projects.setdefault(bundle.project, _Stored())
        is_in_queue = any(item is not None for item, _ in arrived)
        is_read = is_in_queue or (
            self._queue.count(bundle.project) < MOST_READ
            and (not stored.is_unread or stored.last is None or bundle.key < stored.last)
        )
        stored.bundles += 1
        stored.requests += bundle.requests
        opened = _Open(bundle.id, bundle.project, bundle.requests)
        if is_read:
            stored.open[bundle.id] = opened
            if not stored.is_unread:
                stored.last = max(stored.last or bundle.key, bundle.key)
        for item, delivery in arrived:
            again = StoredDelivery(delivery.envelope, opened, self)
            if item is None:
                delivery.done()
                if is_read:
                    self._push(bundle.project, bundle.priority, again)
            elif item in self._unstored:
                del self._unstored[item]
                item.value = again
                delivery.done()
            else:  # a handler has the message of the broker
                again.done()

    async def _add_once(self, bundles: Sequence[Bundle]) -> None:
        async with self._database.write() as tx:
            await self._live(tx)
            await backlog.add(tx, self._owner, bundles)

    # Serving stored requests

    def on_done(self, bundle: _Open) -> None:
        bundle.left -= 1
        if (stored := self._projects.get(bundle.project)) is not None:
            stored.requests -= 1
        if not bundle.left:
            self._ended.append(bundle)
            self._due.set()

    def put_back(self, delivery: StoredDelivery) -> None:
        """Return a stored request to the queue after its handler ended without a result."""
        if (place := _place_of(delivery)) is not None:
            self._push(place.project, place.priority, delivery)
            self._more.set()

    async def _keep_up(self) -> None:
        """Delete the bundles whose requests were handled, and read the following ones."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                while self._low:
                    await self._read(next(iter(self._low)))
                await self.flush()
            except Unavailable as away:
                log.warning("the backlog waits for its database: %s", away)
                self._due.set()
                await asyncio.sleep(PATIENCE)

    async def flush(self) -> None:
        """Delete the bundles whose requests were handled."""
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
            stored = self._projects.get(bundle.project)
            if stored is not None and stored.open.pop(bundle.id, None) is not None:
                stored.bundles -= 1
                if not stored.bundles:
                    del self._projects[bundle.project]

    async def _read(self, project: str) -> None:
        """Read the following bundles of a project into memory if few of its requests are left there."""
        stored = self._projects.get(project)
        if stored is None or not stored.is_unread or self._queue.count(project) >= LEAST_READ:
            self._low.pop(project, None)
            return
        most = READ_AT_ONCE + len(stored.open)
        async with self._database.read() as tx:
            bundles = await backlog.following(tx, self._owner, project, most)
        self._low.pop(project, None)
        if len(bundles) < most:
            stored.bundles = len(stored.open.keys() | {bundle.id for bundle in bundles})
        for bundle in bundles:
            if bundle.id in stored.open:
                continue
            opened = stored.open[bundle.id] = _Open(bundle.id, project, bundle.requests)
            stored.last = bundle.key
            for envelope in bundle.opened():
                self._push(project, bundle.priority, StoredDelivery(envelope, opened, self))
        self._more.set()

    # Ownership

    async def adopt(self, before: str) -> int:
        """Take over the stored requests of another scheduler; return how many."""
        async with self._database.write() as tx:
            adopted = await backlog.adopt(tx, self._owner, before)
            if adopted:
                await self._live(tx)
        if adopted:
            await self.count()
        return adopted

    async def count(self) -> None:
        """Read how many stored requests of each project this scheduler has to serve."""
        async with self._database.read() as tx:
            depths = await backlog.depths(tx, self._owner)
        for project, (bundles, requests) in depths.items():
            stored = self._projects.setdefault(project, _Stored())
            stored.bundles, stored.requests = max(bundles, len(stored.open)), requests
            self._low[project] = None
        self._due.set()

    async def release(self) -> None:
        """Delete the bundles that are done, and release the others for another scheduler."""
        await self.flush()
        if self._projects:
            async with self._database.write() as tx:
                await backlog.RELEASE(tx, owner=self._owner)


def _place_of(delivery: Delivery) -> _Place | None:
    """Return the place of a message, or None for a message that the bus must handle in its way."""
    if delivery.problem or delivery.crashes or delivery.envelope.suspect_of:
        return None
    body = bytes(delivery.envelope.body)
    try:
        body.decode()
        return None if b"\0" in body else _place(body)
    except NOT_JSON:
        return None
