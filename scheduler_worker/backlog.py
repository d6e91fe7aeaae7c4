"""The backlog: build requests taken from the broker faster than they are placed, served in fair order.

A scheduler takes every request from the broker's queue immediately, so that a request never waits behind the
flood of another project. While few requests wait, they stay unacknowledged in memory. If more wait, all are
stored in the database and acknowledged, and later ones of their projects too. Requests leave in the order of
`core/fair_queue.py`. While many wait, a project with few requests need not wait until a large batch of other
projects is placed: its requests are handled in parallel, when it is their turn.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice

import msgspec

from bus.clock import Clock
from bus.errors import NOT_JSON, Unavailable
from bus.protocol import Delivery, Inbox
from bus.vocabulary import UNSAID_ID
from scheduler_worker.core.fair_queue import FairItem, FairQueue, RecentlyServed
from scheduler_worker.request_sizes import RequestSizes
from scheduler_worker.store import backlog
from scheduler_worker.store.backlog import Bundle
from scheduler_worker.stored_requests import PATIENCE, StoredDelivery, StoredRequests
from scheduler_worker.waiting.store import WaitingStore

log = logging.getLogger(__name__)

BOUND = 256  # requests that wait in memory only; if more wait, all are stored
BOUND_OF_ONE = 2048  # if all are of one project
TAKEN_AT_ONCE = 2048
PREFETCH = 5120  # unacknowledged: being handled, in memory, and being stored
MOST_BUNDLED = 256
CALLS_OF_LIGHT = 2  # concurrent handler calls, only with requests of projects that have few
LIGHT = 16  # requests of a project that has few
BACKLOGGED = 256  # waiting requests: then they are not placed within milliseconds
# Requests that arrive meanwhile wait until a batch is placed. Batches of a single project are larger.
SERVED_AT_ONCE = 48
SEVERAL_SECONDS = 60.0  # after the last arrival of requests of different projects
# While a flood arrives, requests are placed in small batches, so that taking it in comes first.
FLOODED = 512  # requests taken at once
SERVED_IN_FLOOD = 16


class _Place(msgspec.Struct, frozen=True):
    """The part of a build request that decides its place in the queue."""

    project: str = UNSAID_ID
    priority: int = 0


_place = msgspec.json.Decoder(_Place).decode

Arrived = tuple[FairItem | None, Delivery]  # the item if it is in the queue already
Waiting = Mapping[tuple[str, int], Sequence[Arrived]]  # by project and priority


class RequestBacklog:
    """The inbox of a scheduler's build requests, in fair order. At most `calls` batches are handled
    concurrently, and CALLS_OF_LIGHT more that contain only requests of projects with few requests.
    """

    def __init__(self, waiting: WaitingStore, clock: Clock, sizes: RequestSizes, calls: int) -> None:
        self._clock = clock
        self._sizes = sizes
        self._most_calls = calls
        self._weights: Mapping[str, float] = {}
        self._recent = RecentlyServed()
        self._queue = FairQueue(self._weight_of)
        self.stored = StoredRequests(
            waiting.database, clock, waiting.name, waiting.live, self._queue, lambda e: sizes.of(e.body)
        )
        self._inbox: Inbox | None = None
        self._unstored: dict[FairItem, None] = {}  # in the queue, and unacknowledged
        self._unusual: deque[Delivery] = deque()  # invalid or redelivered ones, for the handler of the bus
        self._last_project = ""  # of the request that arrived last
        self._several_until = 0.0  # until then, other projects than one may have requests
        self._is_flooded = False
        self._is_light = False  # the present batch has only requests of projects that have few
        self._calls: set[int] = set()  # the other batches: id of the first message
        self._served = 0  # messages in the present batch
        self._opened, self._more = asyncio.Event(), self.stored.more
        self._intake: asyncio.Task[None] | None = None

    def _weight_of(self, project: str) -> float:
        return self._weights.get(project, self._weights.get("", 1.0))

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the weights of projects; "" is the weight of all others."""
        if weights != self._weights:
            self._weights = weights
            self._queue.reweigh()

    def served(self) -> dict[str, float]:
        """Return what each project was served recently."""
        return self._recent.sizes(self._clock.monotonic())

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
        if self._is_backlogged and (self._is_full or (self._is_light and not self._is_light_next)):
            return None
        return self._pop()

    def handled(self, deliveries: Sequence[Delivery]) -> None:
        self._calls.discard(id(deliveries[0]))
        self._more.set()

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

    def _first(self) -> Delivery | None:
        self._served, self._is_light = 0, self._is_light_next
        if self._is_light or self._unusual:
            return self.get_nowait()
        delivery = self._pop() if len(self._calls) < self._most_calls else None
        if delivery is not None:
            self._calls.add(id(delivery))
        return delivery

    @property
    def _has_several(self) -> bool:
        """Return whether requests of different projects arrived recently."""
        return self._clock.monotonic() < self._several_until

    @property
    def _bound(self) -> int:
        return BOUND if self._has_several else BOUND_OF_ONE

    @property
    def _is_backlogged(self) -> bool:
        return bool(self.stored.projects) or len(self._unstored) > BACKLOGGED

    @property
    def _is_full(self) -> bool:
        """Return whether the present batch must not grow, because others wait until it is placed."""
        if self._is_flooded:
            return self._served >= SERVED_IN_FLOOD
        return self._served >= SERVED_AT_ONCE and self._has_several

    @property
    def _is_light_next(self) -> bool:
        """Return whether many requests wait, and the next one is of a project that has few."""
        project = self._queue.next_project
        if project is None or not self._is_backlogged:
            return False
        return self._queue.count(project) <= LIGHT and not self.stored.has_unread(project)

    def _pop(self) -> Delivery | None:
        if (item := self._queue.pop()) is None:
            return None
        self._served += 1
        self._unstored.pop(item, None)
        if self._is_backlogged:
            self._recent.add(item.project, item.size, self._clock.monotonic())
            self.stored.on_taken(item.project)
        delivery: Delivery = item.value
        return delivery

    # Taking requests in

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._intake = group.create_task(self._take_in(group))
            group.create_task(self.stored.run())

    async def _take_in(self, group: asyncio.TaskGroup) -> None:
        await self._opened.wait()
        assert self._inbox is not None
        storing = group.create_task(asyncio.sleep(0))
        while True:
            first = await self._inbox.get()
            arrived = [first, *islice(iter(self._inbox.get_nowait, None), TAKEN_AT_ONCE - 1)]
            self._is_flooded = len(arrived) > FLOODED
            waiting = self._sorted(arrived)
            if len(self._unstored) + len(arrived) <= self._bound:
                few = [place for place in waiting if place[0] not in self.stored.projects]
                self._enter({place: waiting.pop(place) for place in few})
            if waiting:
                await storing  # messages are taken and sorted while earlier messages are stored
                storing = group.create_task(self._store_patiently(waiting))
            self._is_flooded &= self._inbox.buffered > 0
            self._more.set()

    async def _store_patiently(self, waiting: dict[tuple[str, int], list[Arrived]]) -> None:
        try:
            await self._store(waiting)
        except Unavailable as away:
            log.warning("the backlog cannot be stored: %s", away)
            await asyncio.sleep(PATIENCE)

    def _sorted(self, arrived: Sequence[Delivery]) -> dict[tuple[str, int], list[Arrived]]:
        """Return new messages by project and priority. Unreadable and suspect messages go to `_unusual`, from
        which the bus handles them before all others.
        """
        waiting: dict[tuple[str, int], list[Arrived]] = defaultdict(list)
        now = self._clock.now()
        for delivery in arrived:
            place = _place_of(delivery)
            if place is None:
                self._unusual.append(delivery)
                continue
            if place.project != self._last_project:
                if self._last_project:
                    self._several_until = self._clock.monotonic() + SEVERAL_SECONDS
                self._last_project = place.project
            delivery.envelope.sent_at = min(delivery.envelope.sent_at or now, now)
            waiting[place.project, place.priority].append((None, delivery))
        return waiting

    def _enter(self, waiting: Waiting) -> None:
        """Put messages that are not stored into the queue."""
        for (project, priority), arrived in waiting.items():
            for known, delivery in arrived:
                if known is None:
                    envelope = delivery.envelope
                    key = (-priority, envelope.sent_at, envelope.id)
                    item = FairItem(project, key, self._sizes.of(envelope.body), delivery)
                    self._queue.push(item)
                    self._unstored[item] = None
        self._more.set()

    async def _store(self, waiting: dict[tuple[str, int], list[Arrived]]) -> None:
        """Store new messages in the database, then acknowledge them. If too many messages wait, the messages
        that wait in memory only are stored and acknowledged too.
        """
        if len(self._unstored) + sum(map(len, waiting.values())) > self._bound:
            for item in self._unstored:
                waiting[item.project, -item.key[0]].append((item, item.value))
        bundled = [
            (self._bundle(project, priority, some), some)
            for (project, priority), arrived in waiting.items()
            for first in range(0, len(arrived), MOST_BUNDLED)
            if (some := arrived[first : first + MOST_BUNDLED])
        ]
        try:
            await self.stored.add([bundle for bundle, _ in bundled])
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
        in_queue = any(item is not None for item, _ in arrived)
        opened, is_open = self.stored.on_stored(bundle, in_queue=in_queue)
        for item, delivery in arrived:
            if not is_open:
                delivery.done()
                continue
            stored = StoredDelivery(delivery.envelope, opened, self.stored)
            if item is None:
                delivery.done()
                self.stored.push(stored)
            elif item in self._unstored:
                del self._unstored[item]
                item.value = stored
                delivery.done()
            else:  # a handler has the message of the broker
                stored.done()


def _place_of(delivery: Delivery) -> _Place | None:
    """Return the project and priority by which a message is queued; None if it is unreadable or suspect: the
    bus handles such messages.
    """
    if delivery.problem or delivery.crashes or delivery.envelope.suspect_of:
        return None
    body = bytes(delivery.envelope.body)
    try:
        body.decode()
        return None if b"\0" in body else _place(body)
    except NOT_JSON:
        return None
