"""A server for the RPC calls of oslo.messaging, as OpenStack services send them over RabbitMQ.

oslo.messaging acknowledges a call before it executes it, so the calls in progress are lost when a server
dies. This server acknowledges a call after its reply is confirmed, so another server answers it instead.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from aio_pika import ExchangeType
from aio_pika.abc import AbstractConnection

from bus.broker_urls import place
from bus.clock import Clock
from bus.rabbit.connection import (
    BROKEN,
    RequestRefused,
    answered,
    broker_url,
    cancelled_by_us,
    ended,
    hang_up,
    open_channel,
    plainly,
    queue_depth,
    reason,
)
from bus.rabbit.fast_channels.channel import FOREIGN_BYTES, BulkChannel
from bus.rabbit.fast_channels.frames import PERSISTENT, Arrived, NoQueueBound, NotTaken, Post, Properties
from bus.rabbit.foreign.connections import KeptConnection, declare_queue, ensure_exchange

log = logging.getLogger(__name__)

PREFETCH = 200  # maximum number of calls in progress at one server
# Consumer priority, higher than that of oslo.messaging's servers: while a server of berth runs, they get no
# calls, so they can be stopped without losing calls that they have acknowledged before execution.
PRIORITY = 1
STOP_SECONDS = 10.0  # time for calls in progress when the server is stopped; unfinished calls are redelivered
_UNPACKED = ("method", "version", "namespace", "args", "_msg_id", "_reply_q", "_unique_id", "_timeout")


class RpcFailure(Exception):
    """The failure of an RPC method; the caller raises the exception class `class_name` with `kwargs`."""

    def __init__(self, class_name: str, message: str, **kwargs: Any) -> None:
        super().__init__(message)
        self.module, _, self.name = class_name.rpartition(".")
        self.kwargs = kwargs

    def encoded(self) -> str:
        """Return the failure as oslo.messaging encodes exceptions."""
        failure = {
            "class": self.name,
            "module": self.module,
            "message": str(self),
            "tb": [],
            "args": [],
            "kwargs": self.kwargs,
        }
        return msgspec.json.encode(failure).decode()


@dataclass(frozen=True)
class RpcCall:
    """An RPC call of a method, or a cast (a call without a reply address, because no reply is expected)."""

    method: str
    version: str
    namespace: str
    args: Mapping[str, Any]
    context: Mapping[str, Any]
    message_id: str = ""
    reply_queue: str = ""
    monitored: float = 0.0  # seconds without a heartbeat after which the caller gives up; 0: never
    redelivered: bool = False  # True: the call may have been executed before, also by another server


@dataclass(frozen=True)
class RpcResult:
    """The result of an RPC method, as JSON values. `undo`, which reverses the method's effects, is called if
    the caller's reply queue no longer exists.
    """

    value: object = None
    undo: Callable[[], Awaitable[None]] | None = None


RpcHandler = Callable[[RpcCall], Awaitable[RpcResult]]  # executes a method, or raises RpcFailure


def call_of(message: Arrived) -> RpcCall:
    """Return the RPC call in an AMQP message. Raise ValueError if it is not in oslo.messaging's format."""
    body = unpacked(message.body)
    method = body.get("method")
    if not isinstance(method, str) or not isinstance(args := body.get("args") or {}, dict):
        raise ValueError("the message names no method and arguments")
    monitored = body.get("_timeout")
    return RpcCall(
        method=method,
        version=str(body.get("version") or "1.0"),
        namespace=str(body.get("namespace") or ""),
        args=args,
        context={key.removeprefix("_context_"): value for key, value in body.items() if key not in _UNPACKED},
        message_id=str(body.get("_msg_id") or ""),
        reply_queue=str(body.get("_reply_q") or ""),
        monitored=float(monitored) if isinstance(monitored, int | float) else 0.0,
        redelivered=message.redelivered,
    )


def unpacked(body: bytes) -> dict[str, Any]:
    """Return the content of a message in oslo.messaging's envelope. Raise ValueError if it is invalid."""
    try:
        envelope = msgspec.json.decode(body)
        content = msgspec.json.decode(envelope["oslo.message"]) if "oslo.message" in envelope else envelope
    except (msgspec.DecodeError, TypeError) as problem:
        raise ValueError(f"the message is not in oslo.messaging's format: {problem}") from None
    if not isinstance(content, dict):
        raise ValueError("the content of the message is no object")
    return content


def packed(content: Mapping[str, Any]) -> bytes:
    """Return a body in the envelope of oslo.messaging."""
    text = msgspec.json.encode(content).decode()
    return msgspec.json.encode({"oslo.version": "2.0", "oslo.message": text})


@dataclass(frozen=True, kw_only=True)
class RpcAddress:
    """The exchange and topic on which an RPC server receives calls, and the properties of its queues.

    Existing exchanges and queues are used as they are. If missing, they are declared as oslo.messaging would
    with `amqp_durable_queues` (durable), `rabbit_quorum_queue` (quorum, which implies durable) and
    `rabbit_transient_quorum_queue` (durable_fanout).
    """

    url: str
    exchange: str
    topic: str
    durable: bool = False
    quorum: bool = False
    durable_fanout: bool = False

    @property
    def servers_queue(self) -> str:
        """Return the name of a queue that all servers of berth for this topic consume. While no server runs,
        it keeps the exchange for fan-out casts, which RabbitMQ deletes with the last queue bound to it; then
        Nova's services could not publish such a cast.
        """
        return f"{self.topic}_fanout_berth"


class RpcServer:
    """Server of an oslo.messaging topic: it receives and executes RPC calls and casts, each sent to one
    server of the topic, and fan-out casts, each sent to all servers of the topic.
    """

    def __init__(
        self, address: RpcAddress, handler: RpcHandler, *, name: str, clock: Clock | None = None
    ) -> None:
        self._address = address
        self._url = broker_url(address.url, name)
        self._handler = handler
        self._clock = clock or Clock()
        self.listens = asyncio.Event()

    async def run(self) -> None:
        """Execute RPC calls until cancelled; reconnect whenever the connection to the broker breaks."""

        async def use(connection: AbstractConnection) -> None:
            try:
                with plainly(self._url):
                    await self._serve(connection)
            finally:
                self.listens.clear()

        await KeptConnection(self._url, f"no calls of topic {self._address.topic}", self._clock).run(use)

    async def _serve(self, connection: AbstractConnection) -> None:
        fanout = await self._declare(connection)
        channel = await BulkChannel().open(connection, confirms=True, largest=FOREIGN_BYTES)
        running: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as calls:

            def received(message: Arrived) -> None:
                task = calls.create_task(self._execute(connection, channel, message))
                running.add(task)
                task.add_done_callback(running.discard)

            def ignored(message: Arrived) -> None:  # the server's own queue has the same cast
                channel.ack(message.tag)

            consumers = [
                await channel.consume(queue, PREFETCH, on_message, priority=PRIORITY)
                for queue, on_message in (
                    (self._address.servers_queue, ignored),
                    (self._address.topic, received),
                    (fanout, received),
                )
            ]
            self.listens.set()
            log.warning("serving calls of topic %s at %s", self._address.topic, place(self._url))
            try:
                why = await ended(connection)
            except asyncio.CancelledError:
                await _finish(channel, consumers, running)
                raise
            for task in running:  # the broker delivers the calls again
                task.cancel()
        raise ConnectionError(why)

    async def _declare(self, connection: AbstractConnection) -> str:
        """Declare missing exchanges and queues; return the name of this server's queue for fan-out casts (RPC
        messages without a reply that are sent to every server of the topic).
        """
        topic, durable = self._address.topic, self._address.durable or self._address.quorum
        await ensure_exchange(connection, self._address.exchange, ExchangeType.TOPIC, durable=durable)
        fanout_options = {"durable": self._address.durable_fanout, "auto_delete": True}
        await ensure_exchange(connection, f"{topic}_fanout", ExchangeType.FANOUT, **fanout_options)
        arguments: dict[str, Any] = {"x-queue-type": "quorum"} if self._address.quorum else {}
        await self._queue(connection, topic, durable=durable, arguments=arguments)
        kept, limit = self._address.servers_queue, {"x-max-length": 1}
        await self._queue(connection, kept, durable=True, arguments=arguments | limit)
        channel = await open_channel(connection, confirms=False)
        async with answered():
            queue = await channel.get_queue(topic, ensure=False)
            await queue.bind(self._address.exchange, topic)
            await (await channel.get_queue(kept, ensure=False)).bind(f"{topic}_fanout")
            fanout = await channel.declare_queue(
                f"{topic}_fanout_{self._clock.uuid()}", exclusive=True, auto_delete=True
            )
            await fanout.bind(f"{topic}_fanout")
        return fanout.name

    async def _queue(
        self, connection: AbstractConnection, name: str, *, durable: bool, arguments: dict[str, Any]
    ) -> None:
        if await queue_depth(connection, name) is None:
            await declare_queue(connection, name, arguments=arguments, durable=durable)

    async def _execute(self, connection: AbstractConnection, channel: BulkChannel, message: Arrived) -> None:
        """Execute the RPC call in an AMQP message, reply to the caller, then acknowledge the message."""
        try:
            try:
                call = call_of(message)
            except ValueError as problem:
                log.error("a message to topic %s is dropped: %s", self._address.topic, problem)
            else:
                await self._answer(channel, call)
            channel.ack(message.tag)
        except NotTaken:
            log.warning("the broker refuses a reply: calls are executed again on another connection")
            await hang_up(connection)
        except BROKEN as problem:
            if cancelled_by_us(problem):
                raise
            log.info("a call is executed again, because the connection broke: %s", reason(problem))

    async def _answer(self, channel: BulkChannel, call: RpcCall) -> None:
        result, failure = RpcResult(), None
        async with asyncio.TaskGroup() as group:
            heartbeats = group.create_task(self._heartbeats(channel, call))
            try:
                result = await self._handler(call)
            except RpcFailure as expected:
                failure = expected
            except Exception as problem:
                log.exception("method %s failed", call.method)
                failure = RpcFailure("builtins.Exception", f"{type(problem).__name__}: {problem}")
            heartbeats.cancel()
        if not call.reply_queue:
            return
        try:
            await self._reply(channel, call, result.value, failure)
        except NoQueueBound:
            log.warning("the caller of %s has disconnected: no queue %s", call.method, call.reply_queue)
            if result.undo is not None:
                await result.undo()

    async def _heartbeats(self, channel: BulkChannel, call: RpcCall) -> None:
        """Send the caller of an RPC method heartbeats until the method ends, twice as often as required."""
        while call.reply_queue and call.monitored:
            await asyncio.sleep(call.monitored / 2)
            try:
                await self._reply(channel, call, None, None, ending=False)
            except (NoQueueBound, NotTaken, *BROKEN) as problem:
                if cancelled_by_us(problem):
                    raise
                return

    async def _reply(
        self,
        channel: BulkChannel,
        call: RpcCall,
        result: object,
        failure: RpcFailure | None,
        ending: bool = True,
    ) -> None:
        content = {
            "result": result,
            "failure": failure.encoded() if failure is not None else None,
            "ending": ending,
            "_msg_id": call.message_id,
            "_unique_id": self._clock.uuid().replace("-", ""),
        }
        await channel.publish(
            Post("", call.reply_queue, packed(content), properties_of(self._clock), mandatory=True)
        )


async def _finish(channel: BulkChannel, consumers: Sequence[str], running: Set[asyncio.Task[None]]) -> None:
    """Stop consuming RPC calls, and wait a limited time for calls in progress: an unfinished call is repeated
    by another server, and could claim capacity twice.
    """
    with suppress(*BROKEN, RequestRefused):
        for consumer in consumers:
            await channel.cancel(consumer)
    if running:
        await asyncio.wait(running, timeout=STOP_SECONDS)


def properties_of(clock: Clock) -> Any:
    return Properties(
        message_id=clock.uuid(),
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=PERSISTENT,
        priority=0,
        headers={},
    )
