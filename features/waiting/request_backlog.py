"""The backlog: build requests taken from the broker faster than they are placed, served in fair order.

A scheduler takes every request from the broker's queue immediately, so that a request never waits behind the
flood of another project. While few requests wait, they stay unacknowledged in memory. Further requests are
stored in the database and acknowledged. Requests leave in the order of `core/fair_queue.py`. While many
requests wait, a project with few requests counts as light. Its requests are handled in parallel to the large
batches of other projects. The duration of these batches is limited, so that a light request finds the
processors and placement free.
"""

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice

import msgspec

from bus.clock import Clock
from bus.errors import NOT_JSON, Unavailable
from bus.protocol import Delivery, Inbox, is_suspect
from bus.sql.failures import Conflict
from bus.vocabulary import UNSAID_ID, Id, KeystoneId
from features.waiting.core.fair_queue import FairItem, FairQueue
from features.waiting.messages import Priority
from features.waiting.owned_rows import OwnedRows
from features.waiting.request_sizes import RequestSizes
from features.waiting.results import PATIENCE
from features.waiting.start_estimates import StartEstimates
from features.waiting.stored_requests import StoredRequests
from features.waiting.tables import queued

log = logging.getLogger(__name__)

BOUND = 256  # requests that may wait in memory; further requests are stored
BOUND_OF_ONE = 2048  # the same limit while only one project has requests
BOUND_OF_LIGHT = 4096  # the same limit for requests of light projects
TAKEN_AT_ONCE = 2048
STORED_AT_ONCE = 2048  # encoding them blocks the event loop for tens of milliseconds
PREFETCH = 20_000  # messages without acknowledgement: in a handler, in memory or being stored
CALLS_OF_LIGHT = 2  # concurrent handler calls, only with requests of light projects
LIGHT = 16  # a project with at most this many requests is light
BACKLOGGED = 256  # with more waiting requests, a new one is not placed within milliseconds
SEVERAL_SECONDS = 60.0  # batches are limited for so long after requests of two projects arrived
YOUNG_SECONDS = 0.25  # the same when a flood begins: requests of other projects may follow
CALM_SECONDS = 10.0  # a flood is a new one if for so long before it few requests waited
LIGHT_SECONDS = 10.0  # batches of other projects are followed by a pause so long after a light request
BATCH_SECONDS = 0.15  # seconds that placing a limited batch should take
PAUSE = 0.5  # length of the pause, as a fraction of the time that the batch took
LONGEST_PAUSE = 0.25  # seconds
LEAST_BATCH = 32
# While few requests wait, but recent batches had more than PACED on average, a batch begins PACE seconds
# after the last one: placing ten requests together costs about as much as placing two.
PACED = 2.5
PACE = 0.025
# With more than FLOODED requests to store, batches are small, so that storing comes first.
FLOODED = 512
SERVED_IN_FLOOD = 16


class _PlaceWait(msgspec.Struct, frozen=True):
    priority: Priority = 0


class _PlaceParts(msgspec.Struct, frozen=True):
    waiting: _PlaceWait = _PlaceWait()


class _Place(msgspec.Struct, frozen=True):
    """The part of a build request that decides its place in the queue."""

    request: Id
    project: KeystoneId = UNSAID_ID
    priority: Priority = 0  # as clients may write it
    parts: _PlaceParts = _PlaceParts()


_place = msgspec.json.Decoder(_Place).decode

Arrived = dict[tuple[str, int], list[tuple[Id, Delivery]]]  # by project and priority: requests


class RequestBacklog:
    """The inbox of a scheduler's build requests, in fair order. At most `calls` batches are handled
    concurrently, and up to CALLS_OF_LIGHT additional batches with only requests of light projects.
    """

    def __init__(
        self, rows: OwnedRows, starts: StartEstimates, clock: Clock, sizes: RequestSizes, calls: int
    ) -> None:
        self._rows = rows
        self._starts = starts
        self._clock = clock
        self._sizes = sizes
        self._most_calls = calls
        self._queue = FairQueue(clock.monotonic)
        self.stored = StoredRequests(rows, clock, self._queue, lambda e: sizes.of(e.body))
        self._inbox: Inbox | None = None
        self._unstored: dict[FairItem, None] = {}  # requests in the queue without acknowledgement
        self._unusual: deque[Delivery] = deque()  # unreadable or suspect messages, which the bus handles
        self._last_project = ""  # the project of the latest request
        self._several_until = 0.0  # until then, several projects count as having requests
        self._young_until = 0.0  # until then, a flood counts as just begun
        self._flooded_at = -CALM_SECONDS  # when a batch began while many requests waited
        self._light_until = 0.0  # until then, further requests of light projects are expected
        self._paused_until = 0.0
        self._most_limited = LEAST_BATCH  # number of requests that are placed in BATCH_SECONDS
        self._is_light = False  # the present batch has only requests of light projects
        # running batches with requests of any project: id() of the first message → start time
        self._calls: dict[int, float] = {}
        self._handled: dict[int, FairItem] = {}  # requests in running batches, by the id() of the message
        self._served = 0  # messages in the present batch
        self._average = 1.0  # average number of messages in recent batches
        self._last_began = 0.0  # time at which the last batch began
        self._arrived: Arrived = defaultdict(list)  # messages to store
        self._storing: Arrived = {}
        self._opened, self._more = asyncio.Event(), self.stored.more
        self._intake: asyncio.Task[None] | None = None

    def set_weights(self, weights: Mapping[str, float]) -> None:
        self._queue.set_weights(weights)

    def served(self) -> dict[str, float]:
        """Return the total size of recently served requests (as fraction of the cloud), by project."""
        return self._queue.shares.sizes(self._clock.monotonic())

    def measure_starts(self) -> None:
        """Measure how fast the new requests of each project are evaluated."""
        unstored = Counter(item.project for item in self._unstored) if self.stored.projects else {}
        counts = {project: stored.counts for project, stored in self.stored.projects.items()}
        self._starts.measure(counts, unstored)

    # Methods that the bus calls, as of any inbox

    async def open(self, inbox: Inbox) -> None:
        """Begin to take requests from the inbox."""
        self._inbox = inbox
        self._opened.set()

    @property
    def buffered(self) -> int:
        """The number of requests that were received and not taken yet."""
        assert self._inbox is not None
        arrived = sum(map(len, (*self._arrived.values(), *self._storing.values())))
        return self._inbox.buffered + arrived + len(self._unstored) + len(self._unusual)

    async def get(self) -> Delivery:
        while (delivery := self._first()) is None:
            self._more.clear()
            await self._more.wait()
        return delivery

    def get_nowait(self) -> Delivery | None:
        if self._unusual:
            return self._unusual.popleft()
        if self._is_full or (self._is_backlogged and self._is_light and not self._is_light_next):
            return None
        return self._pop()

    def handled(self, deliveries: Sequence[Delivery]) -> None:
        """Count these requests as handled, for the shares of their projects."""
        began = None
        for delivery in deliveries:
            if (item := self._handled.pop(id(delivery), None)) is not None:
                self._queue.done(item)
            began = self._calls.pop(id(delivery), began)
        if began is not None:
            self._on_batch(len(deliveries), self._clock.monotonic() - began)
        self._more.set()

    def _on_batch(self, requests: int, seconds: float) -> None:
        """Record the length of a batch, and adapt the size of time-limited batches to its time. If requests
        of light projects are expected, pause before the next batch, so that they find all workers free.
        """
        self._average += (requests - self._average) / 4
        if requests >= self._most_limited:
            fitting = int(requests * BATCH_SECONDS / max(seconds, BATCH_SECONDS / 2))
            self._most_limited = max((self._most_limited + fitting) // 2, LEAST_BATCH)
        if self._expects_light:
            pause = min(seconds * PAUSE, LONGEST_PAUSE)
            self._paused_until = self._clock.monotonic() + pause

    async def stop(self) -> None:
        """Stop reading the queue, and requeue the messages that were not stored."""
        assert self._inbox is not None
        if self._intake is not None:
            self._intake.cancel()
            with suppress(asyncio.CancelledError):
                await self._intake
        await self._inbox.stop()
        arrived = [delivery for requests in self._arrived.values() for _, delivery in requests]
        for delivery in (*self._unusual, *arrived, *(item.value for item in self._unstored)):
            delivery.requeue()
        self._unusual.clear()
        self._arrived.clear()
        self._unstored.clear()

    def _first(self) -> Delivery | None:
        self._served, self._is_light = 0, self._is_light_next
        if self._is_light and self._queue.projects > 1:
            self._several_until = self._clock.monotonic() + SEVERAL_SECONDS
            self._light_until = self._clock.monotonic() + LIGHT_SECONDS
        if self._is_light or self._unusual:
            return self.get_nowait()
        now = self._clock.monotonic()
        if len(self._calls) >= (1 if self._expects_light else self._most_calls):
            return None
        begins = self._paused_until
        if self._average > PACED and not self._is_backlogged:
            begins = max(begins, self._last_began + PACE)
        if now < begins:
            asyncio.get_running_loop().call_later(begins - now, self._more.set)
            return None
        if self._is_backlogged:
            self._flooded_at = now
        delivery = self._pop()
        if delivery is not None:
            self._calls[id(delivery)], self._last_began = now, now
        return delivery

    @property
    def _has_several(self) -> bool:
        """Return whether several projects had requests recently."""
        return self._clock.monotonic() < self._several_until

    @property
    def _expects_light(self) -> bool:
        return self._clock.monotonic() < self._light_until

    @property
    def _is_backlogged(self) -> bool:
        return bool(self.stored.projects or self._storing) or len(self._unstored) > BACKLOGGED

    @property
    def _is_full(self) -> bool:
        """Return whether the present batch must not grow: many arriving messages must be stored first,
        several projects have requests, or a flood began just now.
        """
        if sum(map(len, self._storing.values())) > FLOODED:
            return self._served >= SERVED_IN_FLOOD
        limited = self._has_several or self._clock.monotonic() < self._young_until
        return self._served >= self._most_limited and limited

    @property
    def _is_light_next(self) -> bool:
        """Return whether many requests wait, and the next request is of a project with few requests."""
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
            self.stored.on_taken(item.project)
        delivery: Delivery = item.value
        self._handled[id(delivery)] = item
        return delivery

    # Intake of requests from the broker

    async def run(self) -> None:
        """Receive and store requests until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._intake = group.create_task(self._take_in(group))
            group.create_task(self.stored.run())

    async def _take_in(self, group: asyncio.TaskGroup) -> None:
        await self._opened.wait()
        assert self._inbox is not None
        while True:
            first = await self._inbox.get()
            now = self._clock.monotonic()
            if not self._is_backlogged and now >= self._flooded_at + CALM_SECONDS:
                self._young_until = now + YOUNG_SECONDS
            arrived = [first, *islice(iter(self._inbox.get_nowait, None), TAKEN_AT_ONCE - 1)]
            for place, requests in self._sorted(arrived).items():
                if self._may_stay_in_memory(place, len(requests)):
                    self._enter(place, requests)
                else:
                    self._arrived[place] += requests
            if self._arrived and not self._storing:
                self._storing, self._arrived = self._arrived, defaultdict(list)
                group.create_task(self._store_arrived())
            self._more.set()

    def _may_stay_in_memory(self, place: tuple[str, int], number: int) -> bool:
        """Return whether this `number` of requests of one project and priority (`place`) may be queued
        without being stored: no stored request of the project precedes them, and few unstored requests are
        queued.
        """
        project, _ = place
        if place in self._arrived or place in self._storing or self.stored.has_unread(project):
            return False
        bound = BOUND if self._has_several else BOUND_OF_ONE
        if self._queue.count(project) + number <= LIGHT:
            bound = BOUND_OF_LIGHT
        return len(self._unstored) + number <= bound

    async def _store_arrived(self) -> None:
        """Store arrived requests until all are stored; meanwhile further messages are received, and sorted by
        project and priority.
        """
        while self._storing:
            try:
                await self._store(self._storing)
            except (Conflict, Unavailable) as away:
                log.warning("the backlog cannot be stored: %s", away)
                await asyncio.sleep(PATIENCE)
            self._storing, self._arrived = self._arrived, defaultdict(list)

    def _sorted(self, arrived: Sequence[Delivery]) -> Arrived:
        """Return new messages by project and priority. Unreadable and suspect messages are appended to
        `_unusual`: the bus handles them before all sorted messages.
        """
        waiting: Arrived = defaultdict(list)
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
            priority = place.priority or place.parts.waiting.priority
            waiting[place.project, priority].append((place.request, delivery))
        return waiting

    def _enter(self, place: tuple[str, int], requests: Sequence[tuple[Id, Delivery]]) -> None:
        """Put messages of a project and priority (`place`) into the queue without storing them."""
        project, priority = place
        for request, delivery in requests:
            envelope = delivery.envelope
            key = (-priority, envelope.sent_at, request)
            item = FairItem(project, key, self._sizes.of(envelope.body), delivery)
            self._queue.push(item)
            self._unstored[item] = None
        self._more.set()

    async def _store(self, arrived: Arrived) -> None:
        """Store messages in the database, STORED_AT_ONCE in a transaction, and then acknowledge them."""
        messages = [(place, *each) for place, requests in arrived.items() for each in requests]
        for at in range(0, len(messages), STORED_AT_ONCE):
            received = [
                (queued.new(request, *place, delivery.envelope), delivery)
                for place, request, delivery in messages[at : at + STORED_AT_ONCE]
            ]
            rows = {row.id: (row, delivery.envelope) for row, delivery in received}
            try:
                owners = await self.stored.add([row for row, _ in rows.values()])
            except BaseException:
                for place, request, delivery in messages[at:]:
                    self._enter(place, [(request, delivery)])
                raise
            for _, delivery in received:
                delivery.done()
            for row, envelope in rows.values():
                if owners[row.id] == self._rows.name:
                    self.stored.on_stored(row, envelope)
            self._more.set()


def _place_of(delivery: Delivery) -> _Place | None:
    """Return the project and priority by which a message is queued; None if the bus must handle it, because
    it is unreadable or suspect.
    """
    if delivery.problem or is_suspect(delivery):
        return None
    body = bytes(delivery.envelope.body)
    try:
        body.decode()
        place = _place(body)
    except NOT_JSON:
        return None
    return None if b"\0" in body or "\0" in place.project else place
