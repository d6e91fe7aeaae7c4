"""Sends notifications to Ironic's exchange on RabbitMQ."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar

from bus.clock import Backoff, Clock
from bus.errors import Unavailable
from bus.rabbit.foreign import BadCredentials, ForeignPublisher
from compute_sim.core.faults import draw
from compute_sim.ironic.conductor import Conductor, Notification
from compute_sim.ironic.envelope import Envelopes, SentNotification

log = logging.getLogger(__name__)

T = TypeVar("T")

TOPICS = ("ironic_versioned_notifications",)
ROOM = 20_000  # waiting messages before requests are delayed
BATCH = 256


class NotificationSink(Protocol):
    """The interface of an object that sends the notifications of the simulated Ironic to a destination."""

    def __call__(self, notification: Notification, /) -> None: ...

    async def wait_for_space(self) -> None:
        """Wait while too many notifications are still unsent."""

    async def run(self) -> None:
        """Send notifications until the task is cancelled."""


class Backlog(Generic[T]):
    """A queue of the simulated Ironic's notifications that have not been sent yet."""

    def __init__(self, most: int = ROOM) -> None:
        self._waiting: deque[T] = deque()
        self._most = most
        self._work_added = asyncio.Event()
        self._has_space = asyncio.Event()
        self._has_space.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: T) -> None:
        self._waiting.append(item)
        self._work_added.set()
        if len(self._waiting) >= self._most:
            self._has_space.clear()

    async def wait_for_space(self) -> None:
        await asyncio.sleep(0)
        await self._has_space.wait()

    async def batch(self) -> list[T]:
        """Wait for notifications and return them; they stay in the queue until `sent` is called."""
        while not self._waiting:
            self._work_added.clear()
            await self._work_added.wait()
        return list(islice(self._waiting, BATCH))

    def sent(self, count: int) -> None:
        for _ in range(count):
            self._waiting.popleft()
        if len(self._waiting) < self._most:
            self._has_space.set()


class IronicExchange:
    """Publishes notifications as Ironic does, but drops a fraction of the provision_set notifications."""

    def __init__(
        self,
        url: str,
        *,
        exchange: str = "ironic",
        topics: Sequence[str] = TOPICS,
        confirms: bool = True,
        lossy: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._publisher = ForeignPublisher(
            url, exchange=exchange, name="simulated Ironic", durable=False, confirms=confirms
        )
        self._lossy = lossy
        self._seed = seed
        self._clock = Clock()
        self._envelopes = Envelopes(self._clock, Conductor.host, topics)
        self._backlog: Backlog[tuple[str, bytes]] = Backlog()
        self._steps = 0
        self.sent = 0
        self.lost = 0

    @property
    def place(self) -> str:
        return self._publisher.place

    def __call__(self, notification: Notification) -> None:
        if isinstance(notification, SentNotification) and (notification.silent or self._loses(notification)):
            return
        for message in self._envelopes.of(notification):
            self._backlog.put(message)

    async def wait_for_space(self) -> None:
        await self._backlog.wait_for_space()

    async def run(self) -> None:
        backoff = Backoff(self._clock)
        try:
            while True:
                try:
                    await self._publisher.ready()
                    batch = await self._backlog.batch()
                    await self._publisher.publish(batch)
                except BadCredentials:
                    raise
                except Unavailable as problem:  # an unconfirmed batch is sent again
                    log.warning("%s; %d notifications wait", problem, len(self._backlog))
                    await backoff.pause()
                else:
                    backoff = Backoff(self._clock)
                    self._backlog.sent(len(batch))
                    self.sent += len(batch)
        finally:
            await self._publisher.close()

    def _loses(self, notification: SentNotification) -> bool:
        if not self._lossy or notification.action != "provision_set" or notification.phase == "start":
            return False
        self._steps += 1
        lost = draw(self._seed, "lost", self._steps) < self._lossy
        self.lost += lost
        return lost
