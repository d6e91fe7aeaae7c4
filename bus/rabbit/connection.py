"""One AMQP connection: opening it, reading it whatever strangers publish, and how it fails."""

import asyncio
import logging
import ssl
from typing import Any, cast

import aiormq
from aiormq import Channel, Connection, SSLContextProvider, TransportFactory
from yarl import URL

from bus.errors import Unavailable
from bus.rabbit.wire import blank_if_unreadable

# What it says about connections we say ourselves, once, and without a traceback for every attempt.
logging.getLogger("aiormq.connection").setLevel(logging.CRITICAL)

HEARTBEAT = 15  # seconds; a peer that is silent for three of them is gone
_DIAL_SECONDS = 10.0

# The broker says no to one request, and closes the channel it came on.
REFUSALS = (
    aiormq.ChannelAccessRefused,
    aiormq.ChannelNotFoundEntity,
    aiormq.ChannelPreconditionFailed,
    aiormq.ChannelLockedResource,
)
# The channel or the connection broke. aiormq also lets futures end as cancelled then: see `cancelled_by_us`.
BROKEN = (aiormq.AMQPError, OSError, RuntimeError, asyncio.CancelledError)


class BadCredentials(Unavailable):
    """The broker does not let us in; trying again will not help."""


def broker_url(url: str, name: str) -> URL:
    """The URL, checked, with our name and heartbeat where it does not set its own. Errors never show it."""
    try:
        parsed = URL(url)
        good = parsed.scheme in ("amqp", "amqps") and bool(parsed.host)
    except ValueError:
        good = False
    if not good:
        raise ValueError("the RabbitMQ URL must look like amqp://user:password@host:5672/vhost (or amqps://)")
    defaults = {"heartbeat": str(HEARTBEAT), "name": name or "berth"}
    return parsed.update_query({**defaults, **parsed.query})


def place(url: URL) -> str:
    """Where a URL leads, without its password."""
    user = f"{url.user}@" if url.user else ""
    vhost = f" vhost {url.path[1:]}" if len(url.path) > 1 else ""
    return f"{user}{url.host}:{url.port or (5671 if url.scheme == 'amqps' else 5672)}{vhost}"


async def dial(url: URL) -> Connection:
    """A new connection, or a reason why not: Unavailable, or BadCredentials."""
    connection = Connection(url, transport_factory=_Factory())
    try:
        async with asyncio.timeout(_DIAL_SECONDS):
            await connection.connect()
    except (aiormq.ProbableAuthenticationError, aiormq.AuthenticationError) as refusal:
        raise BadCredentials(
            f"RabbitMQ at {place(url)} does not accept these credentials: {reason(refusal)}"
        ) from None
    except aiormq.InvalidFrameError as problem:
        if "Connection.OpenOk" not in str(problem):  # the last step, where aiormq does not pass on why
            raise Unavailable(f"RabbitMQ at {place(url)} cannot be understood: {reason(problem)}") from None
        raise Unavailable(
            f"RabbitMQ at {place(url)} does not let us into the virtual host: "
            "there is none of that name, or this user has no permissions there"
        ) from None
    except TimeoutError:
        raise Unavailable(f"RabbitMQ at {place(url)} does not answer") from None
    except (*BROKEN, EOFError, ValueError) as problem:
        if cancelled_by_us(problem):
            raise
        raise Unavailable(f"RabbitMQ at {place(url)} cannot be reached: {reason(problem)}") from None
    return connection


async def hang_up(connection: Connection) -> None:
    """Close it, and see to it that everybody who still waits for it hears that it is closed."""
    try:
        async with asyncio.timeout(5.0):
            await connection.close()
    except (*BROKEN, TimeoutError) as problem:
        if cancelled_by_us(problem):
            raise
    # aiormq's queue of frames to write is bounded, and who waits for room in it would wait for ever
    while not connection.write_queue.empty():
        while not connection.write_queue.empty():
            connection.write_queue.get_nowait()
        await asyncio.sleep(0)


async def open_channel(connection: Connection, *, confirms: bool) -> Channel:
    return cast(Channel, await connection.channel(publisher_confirms=confirms))


def cancelled_by_us(problem: BaseException) -> bool:
    """True when this task is really being cancelled, and aiormq did not only end a future that way."""
    task = asyncio.current_task()
    return isinstance(problem, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def reason(problem: BaseException) -> str:
    """What an AMQP error says, in one line."""
    said = " ".join(str(part) for part in problem.args if part is not None)
    return " ".join(said.split()) or type(problem).__name__


class _Factory(TransportFactory):
    """Opens TCP and TLS connections whose reader is tolerant."""

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        provider: SSLContextProvider = options.pop("ssl_context_provider")
        context: ssl.SSLContext | None = await provider.get_context() if url.scheme == "amqps" else None
        reader, writer = await asyncio.open_connection(
            url.host, url.port, ssl=context, limit=1024 * 1024, **options
        )
        return cast(asyncio.StreamReader, _TolerantReader(reader)), writer


class _TolerantReader:
    """Replaces message headers that cannot be decoded, which would end the connection, again and again.

    aiormq reads an AMQP frame in three steps: its type (1 byte), channel and size (6 bytes), and the rest.
    """

    _HEADER = b"\x02"

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._read = reader.readexactly
        self.at_eof = reader.at_eof
        self.read = reader.read
        self._type = b""

    async def readexactly(self, size: int) -> bytes:
        data = await self._read(size)
        if size == 1:
            self._type = data
        elif self._type == self._HEADER and size > 6:
            return blank_if_unreadable(data)
        return data
