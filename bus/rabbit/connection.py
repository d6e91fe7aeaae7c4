"""Opens, watches and closes AMQP connections, opens channels, and converts errors of the AMQP library to
berth's.
"""

import asyncio
import math
import random
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode

from aio_pika import Connection
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.connection import make_url
from aio_pika.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelClosed,
    ConnectionClosed,
    InvalidFrameError,
    ProbableAuthenticationError,
)

from bus.broker_urls import place, single_urls
from bus.errors import BadCredentials, BrokerRefused, Unavailable
from bus.masking import distrusted
from bus.protocol import QueueDepth
from bus.rabbit.addresses import LONGEST_LIMIT, AddressOrder, BrokerAddress, resolved
from bus.rabbit.fast_channels.frames import Wire

HEARTBEAT = 5  # seconds; a broker that is silent for two of them counts as lost
ANSWER_SECONDS = 60.0  # limit for a reply on a live connection: the broker may lose a request or a confirm
_HANGING_UP_SECONDS = 5.0
_OPENING_SECONDS = 30.0  # limit for opening a channel: a broker that lacks memory or stops does not reply

# Exceptions after the channel or connection broke; about CancelledError see `cancelled_by_us`.
BROKEN = (AMQPError, OSError, RuntimeError, asyncio.CancelledError)

_order = AddressOrder(random.Random())  # shared by all connections of this process

_REFUSALS = ("ACCESS_REFUSED", "NOT_FOUND", "RESOURCE_LOCKED", "PRECONDITION_FAILED")


class RequestRefused(Exception):
    """The broker refused an AMQP request and closed the channel. `code` is AMQP's error name (NOT_FOUND)."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]


@contextmanager
def raising_refusals() -> Iterator[None]:
    """In the `with` block, raise RequestRefused if the broker refuses an AMQP request."""
    try:
        yield
    except ChannelClosed as closed:
        raise refusal(closed) from None


@asynccontextmanager
async def answered(seconds: float | None = None) -> AsyncIterator[None]:
    """In the `with` block, raise TimeoutError if the broker's reply takes longer than `seconds` (by default
    ANSWER_SECONDS), RequestRefused if it refuses.
    """
    with raising_refusals():
        async with asyncio.timeout(seconds or ANSWER_SECONDS):
            yield


@contextmanager
def plainly(url: str, meanwhile: str = "") -> Iterator[None]:
    """In the `with` block, convert RequestRefused to BrokerRefused, and connection errors to Unavailable. The
    text of Unavailable contains `meanwhile`, such as " while queues were deleted".
    """
    try:
        yield
    except RequestRefused as refused:
        raise BrokerRefused(f"RabbitMQ at {place(url)} refuses: {refused}") from None
    except BROKEN as problem:
        if cancelled_by_us(problem):
            raise
        raise Unavailable(f"RabbitMQ at {place(url)} broke off{meanwhile}: {reason(problem)}") from None


def refusal(closed: ChannelClosed) -> Exception:
    """Return RequestRefused if the broker closed the channel to refuse an AMQP request, or else the given
    exception unchanged.
    """
    text = reason(closed)
    return RequestRefused(text) if text.startswith(_REFUSALS) else closed


def broker_url(url: str, name: str) -> str:
    """Return this RabbitMQ URL with a connection name and heartbeat. Raise ValueError if the URL is invalid;
    the error does not contain the URL, which includes a password.
    """
    try:
        for single in single_urls(url):
            make_url(single)
    except ValueError as problem:
        raise ValueError(f"the RabbitMQ URL {problem}") from None
    start, _, query = url.partition("?")
    options = {"heartbeat": str(HEARTBEAT), "name": name or "berth", **dict(parse_qsl(query))}
    return f"{start}?{urlencode(options)}"


async def dial(url: str) -> Connection:
    """Return a new connection to a broker, or raise Unavailable or BadCredentials. Each address is tried for
    a short time, recently failed addresses last.
    """
    found, problems = await resolved(url)
    for address in _order.ordered(found):
        limit = _order.limit(address) if len(found) > 1 else LONGEST_LIMIT
        try:
            connection = await _dial(address, limit)
        except Unavailable as problem:
            _order.failed(address)
            problems.append(problem)
        else:
            _order.succeeded(address)
            return connection
    several = "; ".join(dict.fromkeys(map(str, problems)))
    refused = any(isinstance(problem, BadCredentials) for problem in problems)
    raise (BadCredentials if refused else Unavailable)(several) from None


async def _dial(address: BrokerAddress, limit: float) -> Connection:
    connection = Connection(make_url(address.url))
    connection.kwargs["transport_factory"] = _Streams(address)
    broker = f"RabbitMQ at {address.place}"
    try:
        async with asyncio.timeout(limit):
            await connection.connect()
    except (ProbableAuthenticationError, AuthenticationError) as refused:
        raise BadCredentials(f"{broker} does not accept these credentials: {reason(refused)}") from None
    except InvalidFrameError as problem:
        # RabbitMQ closes the connection without a reason if it refuses the last step, Connection.Open.
        if "Connection.OpenOk" not in str(problem):
            raise Unavailable(f"{broker} cannot be understood: {reason(problem)}") from None
        raise Unavailable(
            f"{broker} does not let us into the virtual host: "
            "there is none of that name, or this user has no permissions there"
        ) from None
    except TimeoutError:
        raise Unavailable(f"{broker} does not answer") from None
    except (*BROKEN, EOFError, ValueError) as problem:
        if cancelled_by_us(problem):
            raise
        why = distrusted(problem) or reason(problem)
        raise Unavailable(f"{broker} cannot be reached: {why}") from None
    finally:
        if connection.transport is None:
            await connection.close()  # or aio-pika tries to close it when it is garbage-collected
    return connection


async def open_channel(connection: AbstractConnection, *, confirms: bool) -> AbstractChannel:
    """Open a channel. With `confirms`, the broker confirms messages; unroutable messages raise an error."""
    async with asyncio.timeout(_OPENING_SECONDS):
        return await connection.channel(publisher_confirms=confirms, on_return_raises=confirms)


async def queue_depth(connection: AbstractConnection, name: str) -> QueueDepth | None:
    """Return the depth of a queue, or None if the queue does not exist; raise RequestRefused if the broker
    refuses for another reason.
    """
    channel = await open_channel(connection, confirms=False)
    try:
        async with answered():
            found = (await channel.get_queue(name)).declaration_result  # a passive declaration
            await channel.close()
    except RequestRefused as refused:
        if refused.code != "NOT_FOUND":
            raise
        return None
    return QueueDepth(found.message_count or 0, found.consumer_count or 0)


def cancelled_by_us(problem: BaseException) -> bool:
    """Return True if this error is a cancellation of the current task; False for another error, such as a
    CancelledError that the AMQP library raised by itself.
    """
    task = asyncio.current_task()
    return isinstance(problem, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def reason(problem: BaseException) -> str:
    """Return the text of an AMQP error, in one line."""
    text = " ".join(str(part) for part in problem.args if part is not None)
    return " ".join(text.split()) or type(problem).__name__


def avoid(connection: AbstractConnection) -> None:
    """Try the address of this connection last from now on, because the connection broke or is unusable."""
    streams: _Streams = cast(Connection, connection).kwargs["transport_factory"]
    _order.failed(streams.address)


def address_of(connection: AbstractConnection) -> str:
    """Return the address of a connection that `dial` opened, for logs."""
    streams: _Streams = cast(Connection, connection).kwargs["transport_factory"]
    return streams.address.place


class _Streams:
    def __init__(self, address: BrokerAddress) -> None:
        self.address = address
        self.wire: Wire
        self.writer: asyncio.StreamWriter

    async def create(self, url: Any, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        provider = options.pop("ssl_context_provider")
        tls: ssl.SSLContext | None = await provider.get_context() if url.scheme == "amqps" else None
        loop = asyncio.get_running_loop()
        self.wire = Wire(loop)
        protocol = asyncio.StreamReaderProtocol(self.wire, loop=loop)
        if tls is not None:
            options["server_hostname"] = url.host
        ip, port = self.address.ip, self.address.port
        transport, _ = await loop.create_connection(lambda: protocol, ip, port, ssl=tls, **options)
        self.writer = asyncio.StreamWriter(transport, protocol, self.wire, loop)
        return self.wire, self.writer


def streams_of(connection: AbstractConnection) -> tuple[Wire, asyncio.StreamWriter]:
    """Return the stream reader and the stream writer of an AMQP connection that `dial` opened."""
    streams: _Streams = cast(Connection, connection).kwargs["transport_factory"]
    return streams.wire, streams.writer


async def ended(connection: AbstractConnection) -> str:
    """Wait until the connection has closed or the broker is silent for two heartbeats, and return the reason.
    Unless this process closed the connection, later connections try this broker's address last.
    """
    if connection.transport is None:
        return "it was closed"
    under = connection.transport.connection
    wire, writer = streams_of(connection)
    closing, silent = under.closing, 0
    limit = 2 * under.connection_tune.heartbeat or math.inf
    while not closing.done() and under.is_opened and silent <= limit:
        before = wire.reads
        await asyncio.wait([closing], timeout=1.0)
        # Count seconds instead of comparing clocks: this process itself may have been suspended.
        silent = silent + 1 if wire.reads == before else 0
    if connection.transport is not None:
        avoid(connection)
    if silent > limit:
        writer.transport.abort()  # without the closing handshake, which a silent broker does not answer
    why = closing.exception() if closing.done() and not closing.cancelled() else None
    closing.cancel()
    return reason(why) if isinstance(why, Exception) else "it fell silent"


async def hang_up(connection: AbstractConnection) -> None:
    """Close a connection to the broker; all calls that wait for a reply on it raise an error."""
    if connection.transport is None:
        return
    # In a separate task, which continues if the caller is cancelled.
    closing = asyncio.create_task(_closed(connection))  # noqa: TID251  there is no group that outlives us
    try:
        await asyncio.wait([closing], timeout=_HANGING_UP_SECONDS)
    finally:
        if not closing.done():  # the broker does not read: close the connection without a handshake
            streams_of(connection)[1].transport.abort()
    await asyncio.wait([closing], timeout=_HANGING_UP_SECONDS)


async def _closed(connection: AbstractConnection) -> None:
    with suppress(*BROKEN):
        await connection.close(ConnectionClosed(0, "closed by us"))
