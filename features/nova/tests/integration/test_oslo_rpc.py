"""A server of oslo.messaging's RPC on a real RabbitMQ: the bridge to Nova is one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from aio_pika import Message, connect
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage

from bus.rabbit.fast_channels.frames import NotTaken
from features.nova.oslo import server as oslo
from features.nova.oslo.client import RpcClient
from features.nova.oslo.server import (
    RpcAddress,
    RpcCall,
    RpcFailure,
    RpcHandler,
    RpcResult,
    RpcServer,
    packed,
    unpacked,
)
from features.nova.oslo.topic import TopicQueue, observe
from tests.support.waiting import in_time, until

pytestmark = [pytest.mark.services, pytest.mark.slow]


@pytest.fixture
def address(amqp_url: str, bus_name: str) -> RpcAddress:
    return RpcAddress(url=amqp_url, exchange=bus_name, topic=f"{bus_name}-scheduler")


@pytest.fixture
async def connection(amqp_url: str) -> AsyncIterator[AbstractConnection]:
    async with await connect(amqp_url) as opened:
        yield opened


@pytest.fixture
async def channel(connection: AbstractConnection) -> AbstractChannel:
    return await connection.channel()


@asynccontextmanager
async def serving(address: RpcAddress, handler: RpcHandler) -> AsyncIterator[RpcServer]:
    server = RpcServer(address, handler, name="test")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(server.run())
        await in_time(server.listens.wait())
        yield server
        running.cancel()


async def _unread(message: AbstractIncomingMessage) -> None:
    pass


async def send(channel: AbstractChannel, address: RpcAddress, exchange: str = "", **content: Any) -> None:
    where = await channel.get_exchange(exchange or address.exchange)
    await where.publish(Message(packed({"version": "4.5", "args": {}, **content})), address.topic)


def call_of(method: str = "ping", **fields: Any) -> RpcCall:
    return RpcCall(method, "4.5", "", fields.pop("args", {}), {}, **fields)


async def test_a_call_gets_its_result_or_its_exception(address: RpcAddress) -> None:
    async def handle(call: RpcCall) -> RpcResult:
        if call.method == "fail":
            raise RpcFailure("nova.exception.NoValidHost", "", reason="no host is left")
        return RpcResult({"given": dict(call.args), "user": call.context.get("user_id")})

    client = RpcClient(address, name="test")
    async with serving(address, handle):
        asked = RpcCall("select", "4.5", "", {"a": [1, "x"]}, {"user_id": "u1"})
        assert await client.forward(asked, 30.0) == {"given": {"a": [1, "x"]}, "user": "u1"}
        with pytest.raises(RpcFailure) as failed:
            await client.forward(call_of("fail"), 30.0)
        assert (failed.value.module, failed.value.name) == ("nova.exception", "NoValidHost")
        assert failed.value.kwargs == {"reason": "no host is left"}
    await client.close()


async def test_existing_queues_are_used_as_they_are(address: RpcAddress, channel: AbstractChannel) -> None:
    await channel.declare_exchange(address.exchange, "topic", durable=True)
    queue = await channel.declare_queue(
        address.topic, durable=True, arguments={"x-queue-type": "quorum", "x-max-length": 7}
    )
    await queue.bind(address.exchange, address.topic)

    async def handle(call: RpcCall) -> RpcResult:
        return RpcResult("pong")

    client = RpcClient(address, name="test")
    async with serving(address, handle):
        assert await client.forward(call_of(), 30.0) == "pong"
    await client.close()


async def test_casts_reach_every_server(address: RpcAddress, channel: AbstractChannel) -> None:
    received: list[str] = []

    def handler(name: str) -> RpcHandler:
        async def handle(call: RpcCall) -> RpcResult:
            received.append(f"{name}: {call.method}")
            return RpcResult()

        return handle

    async with serving(address, handler("first")), serving(address, handler("second")):
        await send(channel, address, f"{address.topic}_fanout", method="update_aggregates")
        await until(lambda: len(received) == 2)
    assert sorted(received) == ["first: update_aggregates", "second: update_aggregates"]


@pytest.mark.parametrize("is_durable", [False, True])
async def test_casts_to_every_server_succeed_while_no_server_runs(
    address: RpcAddress, connection: AbstractConnection, is_durable: bool
) -> None:
    # Nova's services declare the exchange once per connection: later casts fail if it has disappeared.
    received: list[str] = []

    async def handle(call: RpcCall) -> RpcResult:
        received.append(call.method)
        return RpcResult()

    address = replace(address, durable_fanout=is_durable)
    channel, name = await connection.channel(), f"{address.topic}_fanout"
    async with serving(address, handle):
        exchange = await channel.declare_exchange(name, "fanout", durable=is_durable, auto_delete=True)
    for _ in range(3):
        await exchange.publish(Message(packed({"method": "update_aggregates", "args": {}})), "")
    async with serving(address, handle):
        await exchange.publish(Message(packed({"method": "delete_aggregate", "args": {}})), "")
        await until(lambda: bool(received))
    assert received == ["delete_aggregate"]  # no cast waits for a server, which reads everything at its start


async def test_the_consumers_of_a_topic_are_counted_by_kind(
    address: RpcAddress, connection: AbstractConnection
) -> None:
    async def handle(call: RpcCall) -> RpcResult:
        return RpcResult()

    async with serving(address, handle), serving(address, handle):
        other = await (await connection.channel()).get_queue(address.topic)
        await other.consume(_unread)
        assert await observe(address, name="test") == TopicQueue(True, consumers=3, ours=2)
    assert await observe(address, name="test") == TopicQueue(True, consumers=1, ours=0)


async def test_a_call_is_executed_again_if_the_broker_refuses_the_reply(
    address: RpcAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply, refused = RpcServer._reply, list[object]()

    async def refused_at_first(server: RpcServer, *given: Any, **named: Any) -> None:
        if not refused:
            refused.append(given)
            raise NotTaken("refused")
        await reply(server, *given, **named)

    async def handle(call: RpcCall) -> RpcResult:
        return RpcResult("answered")

    monkeypatch.setattr(RpcServer, "_reply", refused_at_first)
    client = RpcClient(address, name="test")
    async with serving(address, handle):
        assert await client.forward(call_of(), 30.0) == "answered"
    await client.close()
    assert refused


async def test_a_server_of_oslo_messaging_gets_no_calls_while_ours_runs(
    address: RpcAddress, channel: AbstractChannel
) -> None:
    async def handle(call: RpcCall) -> RpcResult:
        return RpcResult("ours")

    taken = list[bytes]()

    async def take(message: AbstractIncomingMessage) -> None:
        taken.append(message.body)

    client = RpcClient(address, name="test")
    async with serving(address, handle):
        await (await channel.get_queue(address.topic)).consume(take, no_ack=True)
        answers = [await client.forward(call_of(), 30.0) for _ in range(20)]
    await client.close()
    assert (answers, taken) == (["ours"] * 20, [])


async def test_a_stopped_server_answers_the_calls_in_progress_and_accepts_no_more(
    address: RpcAddress, channel: AbstractChannel
) -> None:
    began, release, calls = asyncio.Event(), asyncio.Event(), list[str]()

    async def handle(call: RpcCall) -> RpcResult:
        calls.append(call.method)
        began.set()
        await release.wait()
        return RpcResult("answered")

    client, server = RpcClient(address, name="test"), RpcServer(address, handle, name="test")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(server.run())
        await in_time(server.listens.wait())
        answer = group.create_task(client.forward(call_of("first"), 30.0))
        await in_time(began.wait())
        running.cancel()
        queue = await channel.get_queue(address.topic)

        async def is_left() -> bool:
            found = await channel.declare_queue(address.topic, passive=True)
            return found.declaration_result.consumer_count == 0

        await until(is_left)
        await send(channel, address, method="second")
        release.set()
        assert await in_time(answer) == "answered"
    assert calls == ["first"]
    message = await in_time(queue.get())
    assert message is not None and b"second" in message.body and not message.redelivered
    await client.close()


async def test_a_call_of_a_killed_server_is_executed_by_another(
    address: RpcAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oslo, "STOP_SECONDS", 0)
    began, calls = asyncio.Event(), list[RpcCall]()

    async def hang(call: RpcCall) -> RpcResult:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def handle(call: RpcCall) -> RpcResult:
        calls.append(call)
        return RpcResult("answered")

    client = RpcClient(address, name="test")
    async with asyncio.TaskGroup() as group:
        async with serving(address, hang):
            answer = group.create_task(client.forward(call_of(), 30.0))
            await in_time(began.wait())
        async with serving(address, handle):
            assert await in_time(answer) == "answered"
    assert [call.redelivered for call in calls] == [True]
    await client.close()


async def test_a_monitored_caller_gets_heartbeats_until_the_result(
    address: RpcAddress, channel: AbstractChannel
) -> None:
    replies = await channel.declare_queue(exclusive=True)
    release = asyncio.Event()

    async def handle(call: RpcCall) -> RpcResult:
        await release.wait()
        return RpcResult("done")

    async with serving(address, handle), replies.iterator() as arriving:
        await send(channel, address, method="x", _msg_id="m1", _reply_q=replies.name, _timeout=0.1)
        heartbeat = unpacked((await in_time(anext(arriving))).body)
        assert (heartbeat["result"], heartbeat["ending"], heartbeat["_msg_id"]) == (None, False, "m1")
        release.set()
        async for reply in arriving:
            content = unpacked(reply.body)
            if content["ending"]:
                assert content["result"] == "done"
                break


async def test_a_result_without_a_waiting_caller_is_undone(
    address: RpcAddress, channel: AbstractChannel
) -> None:
    undone = asyncio.Event()

    async def undo() -> None:
        undone.set()

    async def handle(call: RpcCall) -> RpcResult:
        return RpcResult("claimed", undo)

    async with serving(address, handle):
        await send(channel, address, method="x", _msg_id="m1", _reply_q="no-such-queue")
        await in_time(undone.wait())


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"oslo.message": "["}', msgspec.json.encode({"oslo.message": "{}"})]
)
async def test_a_malformed_call_does_not_stop_the_server(
    address: RpcAddress, channel: AbstractChannel, body: bytes
) -> None:
    async def handle(call: RpcCall) -> RpcResult:
        return RpcResult("pong")

    client = RpcClient(address, name="test")
    async with serving(address, handle):
        where = await channel.get_exchange(address.exchange)
        await where.publish(Message(body), address.topic)
        assert await client.forward(call_of(), 30.0) == "pong"
    await client.close()
