"""A broker that loses single answers blocks no worker and loses no message."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from pamqp import commands, frame, heartbeat
from prometheus_client import REGISTRY

from berth.broker_inspection import delete_queues
from bus import topics
from bus.clock import Clock
from bus.delivery.process import Process
from bus.delivery.runner import Bus
from bus.delivery.serving import serve
from bus.errors import Unavailable, Unconfirmed
from bus.messages import BuildUnplaceable
from bus.protocol import Envelope, QueueSpec
from bus.rabbit import RabbitTransport, client_channels, connection, consuming, reconnecting
from bus.worker import Worker, on
from tests.support.envelopes import an_envelope
from tests.support.waiting import in_time, patience, until

_ANSWERS: dict[str, Callable[[Any], Any]] = {
    "Connection.StartOk": lambda _: commands.Connection.Tune(channel_max=64, frame_max=131072, heartbeat=60),
    "Connection.Open": lambda _: commands.Connection.OpenOk(),
    "Connection.Close": lambda _: commands.Connection.CloseOk(),
    "Channel.Open": lambda _: commands.Channel.OpenOk(),
    "Channel.Close": lambda _: commands.Channel.CloseOk(),
    "Confirm.Select": lambda _: commands.Confirm.SelectOk(),
    "Exchange.Declare": lambda _: commands.Exchange.DeclareOk(),
    "Queue.Bind": lambda _: commands.Queue.BindOk(),
    "Basic.Qos": lambda _: commands.Basic.QosOk(),
    "Basic.Consume": lambda asked: commands.Basic.ConsumeOk(asked.consumer_tag),
    "Basic.Cancel": lambda asked: commands.Basic.CancelOk(asked.consumer_tag),
}
_START = commands.Connection.Start(
    server_properties={"capabilities": {"publisher_confirms": True, "basic.nack": True}},
    mechanisms="PLAIN AMQPLAIN",
)
_HEAD_BYTES = 7


@dataclass
class OddBroker:
    silent: Callable[[Any], bool] = lambda _: False
    refuses: Callable[[int], bool] = lambda channel: False  # all messages that are published on this channel
    refused_queue: str = ""  # a queue with this name exists with other properties
    events: Counter[str] = field(default_factory=Counter)
    url: str = ""
    consumers: int = 1  # of each queue
    is_suspended: bool = False  # then it sends nothing
    reads: asyncio.Event = field(default_factory=asyncio.Event)  # while it is set
    there: list[asyncio.StreamWriter] = field(default_factory=list)
    leaderless: str = ""  # messages with this key are for a quorum queue without a leader
    unconfirmed: list[Callable[[], None]] = field(default_factory=list)  # confirm the messages for it

    def elect(self) -> None:
        """Give the quorum queue a leader: its messages are confirmed."""
        self.leaderless = ""
        while self.unconfirmed:
            self.unconfirmed.pop(0)()

    def say_blocked(self, blocked: bool) -> None:
        """To all: it is short of memory, or not any more."""
        reply = commands.Connection.Blocked("memory") if blocked else commands.Connection.Unblocked()
        for writer in self.there:
            writer.write(frame.marshal(reply, 0))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        published: Counter[int] = Counter()  # by channel
        keys: dict[int, str] = {}  # the routing key of the last message, by channel
        known: set[tuple[int, str]] = set()  # channels with the keys of the queues that confirmed before
        stuck: set[int] = set()  # channels whose first message for a queue found no leader

        def say(what: Any, channel: int = 0) -> None:
            if not self.is_suspended:
                writer.write(frame.marshal(what, channel))

        async def lives() -> None:
            while True:
                await asyncio.sleep(1.0)
                say(heartbeat.Heartbeat())

        async def answers() -> None:
            while True:
                await self.reads.wait()
                head = await reader.readexactly(_HEAD_BYTES)
                size = int.from_bytes(head[3:])
                _, channel, asked = frame.unmarshal(head + await reader.readexactly(size + 1))
                self.events[asked.name] += 1
                if isinstance(asked, commands.Basic.Publish):
                    published[channel] += 1
                    keys[channel] = asked.routing_key
                if self.silent(asked):
                    continue
                if asked.name == "ContentBody":
                    if keys[channel] == self.leaderless and (channel, keys[channel]) not in known:
                        stuck.add(channel)
                    if self.leaderless and (channel in stuck or keys[channel] == self.leaderless):
                        ack = partial(say, commands.Basic.Ack(published[channel]), channel)
                        self.unconfirmed.append(ack)
                        continue
                    known.add((channel, keys[channel]))
                if asked.name == "ContentBody":
                    settle = commands.Basic.Nack if self.refuses(channel) else commands.Basic.Ack
                    say(settle(published[channel]), channel)
                elif isinstance(asked, commands.Queue.Declare) and asked.queue == self.refused_queue:
                    why = f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue {asked.queue!r}"
                    say(commands.Channel.Close(406, why, 50, 10), channel)
                elif isinstance(asked, commands.Queue.Declare):
                    say(commands.Queue.DeclareOk(asked.queue, 0, self.consumers), channel)
                elif asked.name in _ANSWERS:
                    say(_ANSWERS[asked.name](asked), channel)

        self.there.append(writer)
        say(_START)
        living = asyncio.create_task(lives())
        with suppress(asyncio.IncompleteReadError, OSError):
            await answers()
        living.cancel()
        writer.close()
        self.there.remove(writer)


@asynccontextmanager
async def an_odd_broker(silent: Callable[[Any], bool] = lambda _: False) -> AsyncIterator[OddBroker]:
    broker = OddBroker(silent)
    broker.reads.set()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0, limit=2**16)
    broker.url = f"amqp://guest:guest@127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    try:
        yield broker
    finally:
        server.close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(connection, "_OPENING_SECONDS", 0.2)
    monkeypatch.setattr(reconnecting, "UNCONFIRMED_SECONDS", 0.2)
    monkeypatch.setattr(connection, "_HANGING_UP_SECONDS", 0.2)
    monkeypatch.setattr(client_channels, "SHARED_SECONDS", 0.2)
    monkeypatch.setattr(client_channels, "OWN_SECONDS", 0.2)
    monkeypatch.setattr(client_channels, "_CLOSING_SECONDS", 0.2)


@asynccontextmanager
async def a_transport(broker: OddBroker) -> AsyncIterator[RabbitTransport]:
    transport = RabbitTransport(broker.url, exchange="x", poll_seconds=0.05)
    await transport.open()
    try:
        yield transport
    finally:
        await in_time(transport.close())


def once(matches: Callable[[Any], bool]) -> Callable[[Any], bool]:
    lost: list[Any] = []

    def silent(asked: Any) -> bool:
        if lost or not matches(asked):
            return False
        lost.append(asked)
        return True

    return silent


def served_by(transport: RabbitTransport, stopping: asyncio.Event, drain: float) -> Process:
    return Process(
        transport=transport, clock=Clock(), replica="r", stopping=stopping, drain=drain, turns=asyncio.Lock()
    )


async def test_unconfirmed_messages_are_sent_again() -> None:
    async with (
        an_odd_broker(once(lambda asked: asked.name == "ContentBody")) as broker,
        a_transport(broker) as transport,
    ):
        await in_time(transport.publish([an_envelope(1)], expected=[True]))
        assert broker.events["ContentBody"] == 2
        await in_time(transport.publish([an_envelope(2)], expected=[True]))
        assert broker.events["ContentBody"] == 3


def an_end(client: str) -> Envelope:
    return an_envelope(1, f"build.ended.c1.{client}", type="BuildEnded")


@pytest.mark.parametrize("is_known", [True, False], ids=["after its first message", "at its first message"])
async def test_a_clients_queue_that_confirms_nothing_delays_no_other_message(is_known: bool) -> None:
    async with an_odd_broker() as broker, a_transport(broker) as transport:

        async def publish(*messages: Envelope) -> None:
            async with patience(1.0):
                await transport.publish(messages, expected=[False] * len(messages))

        clients = [f"shop{number}" for number in range(50)]
        await publish(*map(an_end, clients), *([an_end("stuck")] if is_known else []))
        broker.leaderless = "build.ended.c1.stuck"
        async with asyncio.TaskGroup() as group:
            late = group.create_task(_unconfirmed(transport, an_end("stuck")))
            for _ in range(5):
                await publish(an_envelope(2), *map(an_end, clients))
        assert late.result().causes == {""}
        channels = broker.events["Channel.Open"]
        for _ in range(20):
            await _unconfirmed(transport, an_end("stuck"))
            await publish(an_envelope(2), *map(an_end, clients))
        assert broker.events["Channel.Open"] - channels < 10, "a try of one client costs others no channel"


async def _is_confirmed(transport: RabbitTransport, message: Envelope) -> bool:
    with suppress(Unconfirmed):
        await transport.publish([message], expected=[False])
        return True
    return False


async def _unconfirmed(transport: RabbitTransport, message: Envelope) -> Unconfirmed:
    with pytest.raises(Unconfirmed) as raised:
        await in_time(transport.publish([message], expected=[False]))
    return raised.value


async def test_a_clients_queue_gets_messages_again_when_it_confirms_them() -> None:
    async with an_odd_broker() as broker, a_transport(broker) as transport:
        broker.leaderless = "build.ended.c1.stuck"
        await _unconfirmed(transport, an_end("stuck"))
        await _unconfirmed(transport, an_end("stuck"))
        broker.elect()
        await until(lambda: _is_confirmed(transport, an_end("stuck")))
        opened = broker.events["Channel.Open"]
        await in_time(transport.publish([an_end("stuck"), an_end("shop")], expected=[False] * 2))
        assert broker.events["Channel.Open"] <= opened + 1, "all clients share one channel again"


async def test_a_client_whose_confirm_was_lost_gets_a_new_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_channels, "RENEWED_SECONDS", 0.2)
    async with an_odd_broker() as broker, a_transport(broker) as transport:
        broker.leaderless = "build.ended.c1.stuck"
        await _unconfirmed(transport, an_end("stuck"))
        broker.leaderless = ""
        broker.unconfirmed.clear()
        await until(lambda: _is_confirmed(transport, an_end("stuck")))


async def test_a_client_whose_queue_refuses_messages_delays_no_other_message() -> None:
    async with an_odd_broker() as broker, a_transport(broker) as transport:
        await in_time(transport.publish([an_end("shop")], expected=[False]))
        broker.refuses = lambda channel: True
        await _unconfirmed(transport, an_end("full"))
        broker.refuses = lambda channel: False
        await in_time(transport.publish([an_envelope(1), an_end("shop")], expected=[True, False]))


async def test_a_channel_that_refuses_messages_is_replaced_if_another_takes_them() -> None:
    async with an_odd_broker() as broker, a_transport(broker) as transport:
        await in_time(transport.publish([an_envelope(1)], expected=[True]))
        assert (broker.events["Confirm.Select"], broker.events["Basic.Publish"]) == (1, 1)
        broker.refuses = lambda channel: channel == 1
        await in_time(asyncio.gather(*(transport.publish([an_envelope(n)], expected=[True]) for n in (2, 3))))
        refused = broker.events["Basic.Publish"]
        await in_time(transport.publish([an_envelope(4)], expected=[True]))
        assert (broker.events["Confirm.Select"], broker.events["Basic.Publish"]) == (2, refused + 1)


async def test_a_message_that_every_channel_refuses_is_published_again_later() -> None:
    async with an_odd_broker() as broker, a_transport(broker) as transport:
        broker.refuses = lambda _: True
        publishing = asyncio.create_task(transport.publish([an_envelope(1)], expected=[True]))
        await until(lambda: broker.events["Basic.Publish"] >= 4)
        broker.refuses = lambda _: False
        await in_time(publishing)
        assert broker.events["Channel.Close"] == broker.events["Confirm.Select"] - 1


async def test_a_queue_that_cannot_be_declared_again_does_not_stop_the_others() -> None:
    async with an_odd_broker() as broker, a_transport(broker) as transport:
        await transport.consume(QueueSpec("q", ("build.requested",)), 10)
        await transport.consume(QueueSpec("r", ("build.delete.c1",)), 10)
        consumers = broker.events["Basic.Consume"]
        broker.refused_queue = "x:r"
        for writer in list(broker.there):
            writer.transport.abort()
        await in_time(transport.publish([an_envelope(1)], expected=[True]))
        await until(lambda: broker.events["Basic.Consume"] == consumers + 1, "messages of q are read")
        broker.refused_queue = ""
        await until(lambda: broker.events["Basic.Consume"] == consumers + 2, "messages of r are read, too")


@pytest.mark.parametrize("key", ["build.requested", "build.ended.c1.shop"])
async def test_a_blocked_broker_gets_no_repeated_messages(key: str) -> None:
    def short(asked: Any) -> bool:
        return bool(asked.name == "ContentBody")

    async with an_odd_broker(short) as broker, a_transport(broker) as transport:
        publishing = asyncio.create_task(transport.publish([an_envelope(1, key)], expected=[True]))
        await until(lambda: broker.events["ContentBody"])
        broker.say_blocked(True)
        looks = broker.events["Exchange.Declare"]
        await until(lambda: broker.events["Exchange.Declare"] > looks + 50)
        assert broker.events["ContentBody"] == 1
        broker.say_blocked(False)
        broker.silent = lambda _: False
        await in_time(publishing)
        assert broker.events["ContentBody"] == 2


@pytest.mark.parametrize("name", ["Queue.Declare", "Queue.Bind", "Exchange.Declare"])
async def test_an_unanswered_query_is_sent_again(name: str) -> None:
    async with an_odd_broker() as broker, a_transport(broker) as transport:
        broker.silent = once(lambda asked: asked.name == name)
        await in_time(transport.declare(QueueSpec("one", ("k",))))
        await in_time(transport.declare(QueueSpec("another", ("k",))))
        assert await in_time(transport.waiting("one")) == 0


@pytest.mark.parametrize("name", ["Basic.Qos", "Basic.Consume", "Channel.Open"])
async def test_a_reader_starts_in_spite_of_a_silent_broker(name: str) -> None:
    async with an_odd_broker() as broker, a_transport(broker) as transport:
        broker.silent = once(lambda asked: asked.name == name)
        inbox = await in_time(transport.consume(QueueSpec("one", ("k",)), 10))
        broker.silent = lambda asked: asked.name == "Basic.Cancel"
        await in_time(inbox.stop())


@pytest.mark.parametrize("name", ["Channel.Close", "Connection.Close", "Basic.Cancel"])
async def test_a_cancelled_worker_leaves_no_connection(name: str) -> None:
    reading = asyncio.Event()

    async with an_odd_broker(lambda asked: asked.name == name) as broker:

        async def live() -> None:
            async with Bus(RabbitTransport(broker.url, exchange="x", poll_seconds=0.05)) as bus:
                await bus.transport.consume(QueueSpec("one", ("k",)), 10)
                reading.set()
                await asyncio.Event().wait()

        living = asyncio.create_task(live())
        await in_time(reading.wait())
        living.cancel()
        await in_time(asyncio.wait([living]))
        assert living.cancelled()
        await until(lambda: not broker.there)


@pytest.mark.parametrize("name", ["Queue.Declare", "Basic.Consume"])
async def test_a_stopping_worker_does_not_wait_for_the_broker(name: str) -> None:
    async def handle(_: BuildUnplaceable) -> None: ...

    worker = Worker("one", [on(topics.BUILD_UNPLACEABLE, handle)])
    async with an_odd_broker() as broker, a_transport(broker) as transport:
        broker.silent = lambda asked: asked.name == name
        stopping = asyncio.Event()
        serving = asyncio.create_task(serve(worker, served_by(transport, stopping, 0.1)))
        await until(lambda: broker.events[name])
        stopping.set()
        await in_time(serving)


@pytest.mark.parametrize("name", ["Queue.Delete", "Channel.Open"])
async def test_deleting_queues_reports_a_missing_reply(name: str) -> None:
    async with an_odd_broker(lambda asked: asked.name == name) as broker:
        with pytest.raises(Unavailable, match="broke off while queues were deleted"):
            await in_time(delete_queues(broker.url, ["one"]))


async def test_an_internal_error_of_a_connection_ends_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(message: BuildUnplaceable) -> None: ...

    async def fault() -> None:
        raise ZeroDivisionError

    worker = Worker("w", consumes=[on(topics.BUILD_UNPLACEABLE, handle)])
    async with an_odd_broker() as broker, a_transport(broker) as transport:
        serving = asyncio.create_task(serve(worker, served_by(transport, asyncio.Event(), 1.0)))
        await until(lambda: broker.events["Basic.Consume"])
        broker.silent = lambda asked: asked.name == "ContentBody"  # so that it waits for a confirm
        publishing = asyncio.create_task(transport.publish([an_envelope(1)], expected=[True]))
        await until(lambda: broker.events["ContentBody"])
        up = partial(REGISTRY.get_sample_value, "berth_broker_connections", {"broker": transport._link.place})
        assert up() == 1
        transport._link.spawn(fault())
        with pytest.raises(ExceptionGroup) as ended:
            await in_time(serving)
        assert ended.group_contains(Unavailable, match="ended by an error")
        with pytest.raises(Unavailable):
            await in_time(publishing)
        assert up() == 0
    assert "ZeroDivisionError" in caplog.text


async def test_a_consumer_that_the_broker_has_lost_is_registered_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consuming, "PROOF_SECONDS", 0.02)
    async with an_odd_broker() as broker, a_transport(broker) as transport:
        await in_time(transport.consume(QueueSpec("one", ("k",)), 10))
        checks = broker.events["Queue.Declare"]
        await until(lambda: broker.events["Queue.Declare"] > checks + 5)
        assert broker.events["Basic.Consume"] == 1
        broker.consumers = 0
        await until(lambda: broker.events["Basic.Consume"] > 1)
        assert "one: the broker has lost our queue or consumer; consuming again" in caplog.text


async def test_a_broker_without_heartbeats_counts_as_lost_after_two(caplog: pytest.LogCaptureFixture) -> None:
    async with an_odd_broker() as broker:
        transport = RabbitTransport(f"{broker.url}?heartbeat=1", exchange="x", poll_seconds=0.05)
        await transport.open()
        broker.is_suspended = True
        began = time.monotonic()
        await until(lambda: "lost the connection" in caplog.text)
        took = time.monotonic() - began
        broker.is_suspended = False
        await in_time(transport.publish([an_envelope(1)], expected=[True]))
        await in_time(transport.close())
    assert "it fell silent" in caplog.text
    assert 2 < took < 6  # aio-pika's limit is 6 seconds
