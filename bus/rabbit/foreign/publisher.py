"""Publishes messages on exchanges of other systems, such as Ironic's and Nova's."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NoReturn

from aio_pika import ExchangeType
from aio_pika.abc import AbstractConnection

from bus.broker_urls import place
from bus.clock import Backoff, Clock
from bus.errors import BadCredentials, Unavailable
from bus.rabbit.connection import (
    ANSWER_SECONDS,
    BROKEN,
    RequestRefused,
    answered,
    broker_url,
    cancelled_by_us,
    reason,
)
from bus.rabbit.fast_channels.channel import BulkChannel
from bus.rabbit.fast_channels.frames import PERSISTENT, NotTaken, Post, Properties
from bus.rabbit.foreign.connections import KeptChannel, ensure_exchange

log = logging.getLogger(__name__)

MOST_WAITING = 1000  # messages, unless a publisher has another limit
BATCH = 256  # messages that are published together


class ForeignPublisher:
    """Publishes messages to another system's exchange, for parts of berth that replace or simulate the
    system. A missing exchange is declared with the arguments that the system uses.

    `add` queues messages, and `run` publishes them in the background. While the broker is unreachable they
    wait, at most `limit` of them: then the oldest are dropped.
    """

    def __init__(
        self,
        url: str,
        exchange: str,
        name: str,
        *,
        durable: bool = False,
        limit: int = MOST_WAITING,
        clock: Clock | None = None,
    ) -> None:
        self._url = broker_url(url, name)
        self._exchange = exchange
        self._durable = durable
        self._limit = limit
        self._clock = clock or Clock()
        self._channel = KeptChannel(self._url, self._prepared)
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._added = asyncio.Event()
        self._is_dropping = False  # True: the log already has that messages are dropped

    @property
    def place(self) -> str:
        """Return the exchange and the broker's address, without the password, for logs."""
        return f"exchange {self._exchange} at {place(self._url)}"

    def add(self, messages: Iterable[tuple[str, bytes]]) -> None:
        """Queue messages, each with its routing key, for `run`."""
        self._waiting.extend(messages)
        self._drop_oldest()
        self._added.set()

    async def run(self, *, ends_if_rejected: bool = False) -> None:
        """Publish the queued messages until cancelled. If the broker rejects the credentials, raise
        BadCredentials with `ends_if_rejected`; else try again, as if the broker was unreachable.
        """
        backoff = Backoff(self._clock)
        try:
            while True:
                try:
                    await self.ready()
                    self._added.clear()
                    while self._waiting:
                        await self._publish_oldest()
                except Unavailable as problem:
                    if ends_if_rejected and isinstance(problem, BadCredentials):
                        raise
                    log.warning("%s; %d messages wait", problem, len(self._waiting))
                    await backoff.pause()
                else:
                    backoff, self._is_dropping = Backoff(self._clock), False
                    await self._added.wait()
        finally:
            await self.close()

    async def ready(self) -> None:
        """Connect to the broker, and declare the other system's exchange if it is missing; raise Unavailable
        or BadCredentials.
        """
        await self._opened()

    async def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Publish each body with its routing key, in this sequence; wait for the confirms. Raise Unavailable
        if the broker is unreachable or refuses a message: then all must be published again.
        """
        channel = await self._opened()
        sending = [channel.publish(self._post(key, body)) for key, body in messages]
        problems: list[BaseException | None] = []
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                problems += await asyncio.gather(*sending, return_exceptions=True)
        except TimeoutError as unconfirmed:
            problems.append(unconfirmed)
        for problem in problems:
            if problem is not None:
                await self._broke_off(problem)

    async def close(self) -> None:
        await self._channel.close()

    async def _publish_oldest(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        try:
            await self.publish(batch)
        except Unavailable:
            self._waiting.extendleft(reversed(batch))
            self._drop_oldest()
            raise

    def _drop_oldest(self) -> None:
        surplus = len(self._waiting) - self._limit
        if surplus > 0 and not self._is_dropping:
            self._is_dropping = True
            log.warning("%s: %d messages wait; the oldest are dropped now", self.place, self._limit)
        for _ in range(surplus):
            self._waiting.popleft()

    async def _opened(self) -> BulkChannel:
        try:
            return await self._channel.opened()
        except (*BROKEN, RequestRefused) as problem:
            await self._broke_off(problem)

    async def _prepared(self, connection: AbstractConnection) -> BulkChannel:
        await ensure_exchange(connection, self._exchange, ExchangeType.TOPIC, durable=self._durable)
        async with answered():
            return await BulkChannel().open(connection, confirms=True)

    async def _broke_off(self, problem: BaseException) -> NoReturn:
        if cancelled_by_us(problem) or not isinstance(problem, (*BROKEN, NotTaken, RequestRefused)):
            raise problem
        await self.close()
        raise Unavailable(f"{self.place} broke off: {reason(problem)}") from None

    def _post(self, key: str, body: bytes) -> Post:
        properties = Properties(
            content_type="application/json",
            content_encoding="utf-8",
            delivery_mode=PERSISTENT,
            priority=0,
            headers={},
        )
        return Post(self._exchange, key, body, properties, mandatory=False)
