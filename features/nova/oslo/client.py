"""A client of oslo.messaging's RPC on RabbitMQ, which forwards calls to another service."""

import asyncio
import logging
from typing import Any

import msgspec
from aio_pika.abc import AbstractConnection

from bus.broker_urls import place
from bus.clock import Clock
from bus.errors import Unavailable
from bus.rabbit.connection import answered, broker_url, open_channel, plainly
from bus.rabbit.fast_channels.channel import FOREIGN_BYTES, BulkChannel
from bus.rabbit.fast_channels.frames import Arrived, NoQueueBound, Post
from bus.rabbit.foreign.connections import KeptChannel
from features.nova.oslo.server import (
    PREFETCH,
    RpcAddress,
    RpcCall,
    RpcFailure,
    packed,
    properties_of,
    unpacked,
)

log = logging.getLogger(__name__)


class RpcClient:
    """Forwards RPC calls to the servers of another topic or virtual host, and returns their results."""

    def __init__(self, address: RpcAddress, *, name: str, clock: Clock | None = None) -> None:
        self._address = address
        self._url = broker_url(address.url, name)
        self._clock = clock or Clock()
        self._channel = KeptChannel(self._url, self._prepared)
        self._reply_queue = ""
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}

    async def forward(self, call: RpcCall, timeout: float) -> object:
        """Send an RPC call to the servers of the client's topic, and return the result; raise RpcFailure if
        the method failed, or Unavailable if no server answers.
        """
        channel = await self._channel.opened()
        id_ = self._clock.uuid().replace("-", "")
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[id_] = answer
        content = {
            **{f"_context_{key}": value for key, value in call.context.items()},
            "method": call.method,
            "version": call.version,
            "args": call.args,
            "_msg_id": id_,
            "_reply_q": self._reply_queue,
            "_unique_id": self._clock.uuid().replace("-", ""),
        }
        try:
            with plainly(self._url):
                await channel.publish(
                    Post(
                        self._address.exchange,
                        self._address.topic,
                        packed(content),
                        properties_of(self._clock),
                        mandatory=True,
                    )
                )
            async with asyncio.timeout(timeout):
                reply = await answer
        except NoQueueBound:
            raise Unavailable(f"no server of topic {self._address.topic} at {place(self._url)}") from None
        except TimeoutError:
            raise Unavailable(f"topic {self._address.topic} at {place(self._url)} does not answer") from None
        finally:
            self._waiting.pop(id_, None)
        if reply.get("failure"):
            raise _failure_of(reply["failure"])
        return reply.get("result")

    async def close(self) -> None:
        await self._channel.close()

    async def _prepared(self, connection: AbstractConnection) -> BulkChannel:
        with plainly(self._url):
            channel = await open_channel(connection, confirms=False)
            async with answered():
                queue = await channel.declare_queue(
                    f"reply_{self._clock.uuid()}", exclusive=True, auto_delete=True
                )
            self._reply_queue = queue.name
            bulk = await BulkChannel().open(connection, confirms=True, largest=FOREIGN_BYTES)
            await bulk.consume(queue.name, PREFETCH, lambda message: self._received(bulk, message))
        return bulk

    def _received(self, channel: BulkChannel, message: Arrived) -> None:
        channel.ack(message.tag)
        try:
            reply = unpacked(message.body)
        except ValueError as problem:
            log.error("a reply is dropped: %s", problem)
            return
        answer = self._waiting.get(str(reply.get("_msg_id")))
        if answer is not None and reply.get("ending") and not answer.done():
            answer.set_result(reply)


def _failure_of(encoded: str) -> RpcFailure:
    failure = msgspec.json.decode(encoded)
    class_name = f"{failure.get('module')}.{failure.get('class')}"
    return RpcFailure(class_name, str(failure.get("message") or ""), **(failure.get("kwargs") or {}))
