"""Connections to the brokers of other systems: for one operation, kept open, and with a kept channel."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aio_pika import ExchangeType
from aio_pika.abc import AbstractConnection

from bus.clock import Backoff, Clock
from bus.errors import BrokerRefused, Unavailable
from bus.rabbit.connection import RequestRefused, answered, dial, hang_up, open_channel, plainly
from bus.rabbit.fast_channels.channel import BulkChannel

log = logging.getLogger(__name__)


@asynccontextmanager
async def connected(url: str, meanwhile: str = "") -> AsyncIterator[AbstractConnection]:
    """Open a connection for the `with` block. Raise Unavailable if the broker cannot be reached or breaks off
    `meanwhile`, and BrokerRefused if it refuses a request.
    """
    connection = await dial(url)
    try:
        with plainly(url, meanwhile):
            yield connection
    finally:
        await hang_up(connection)


class KeptConnection:
    """A connection that is opened again whenever it has ended. A problem that repeats is logged once."""

    def __init__(self, url: str, what: str, clock: Clock) -> None:
        self.complaint = ""  # the last logged problem
        self._url, self._what, self._clock = url, what, clock

    async def run(self, use: Callable[[AbstractConnection], Awaitable[None]]) -> None:
        """Call `use` with each connection until cancelled."""
        backoff = Backoff(self._clock)
        while True:
            try:
                connection = await dial(self._url)
                try:
                    backoff = Backoff(self._clock)
                    await use(connection)
                finally:
                    await hang_up(connection)
            except (Unavailable, BrokerRefused) as problem:
                if str(problem) != self.complaint:
                    log.warning("%s: %s; trying again until it works", self._what, problem)
                self.complaint = str(problem)
            await backoff.pause()


class KeptChannel:
    """A channel that is opened when it is needed, and again after it has closed. `prepare` opens it."""

    def __init__(self, url: str, prepare: Callable[[AbstractConnection], Awaitable[BulkChannel]]) -> None:
        self._url = url
        self._prepare = prepare
        self._connection: AbstractConnection | None = None
        self._channel: BulkChannel | None = None
        self._opening = asyncio.Lock()

    async def opened(self) -> BulkChannel:
        """Return the open channel. Raise Unavailable or BadCredentials, or what `prepare` raises."""
        async with self._opening:
            if self._channel is None or self._channel.closed:
                await self.close()
                self._connection = await dial(self._url)
                self._channel = await self._prepare(self._connection)
            return self._channel

    async def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            await hang_up(connection)


async def ensure_exchange(
    connection: AbstractConnection, name: str, kind: ExchangeType, **options: Any
) -> None:
    """Declare an exchange if it is missing; an existing one is used as it is. Raise RequestRefused if the
    broker refuses.
    """
    channel = await open_channel(connection, confirms=False)
    try:
        async with answered():
            await channel.get_exchange(name)
    except RequestRefused as refused:
        if refused.code != "NOT_FOUND":
            raise
        channel = await open_channel(connection, confirms=False)
        async with answered():
            await channel.declare_exchange(name, kind, **options)
    async with answered():
        await channel.close()


async def declare_queue(connection: AbstractConnection, name: str, **options: Any) -> None:
    """Declare a queue. An existing queue does not change; raise RequestRefused if it has other properties."""
    channel = await open_channel(connection, confirms=False)
    async with answered():
        await channel.declare_queue(name, **options)
        await channel.close()
