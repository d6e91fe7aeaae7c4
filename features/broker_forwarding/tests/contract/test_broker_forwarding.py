"""Messages of one RabbitMQ reach the same queues of another: all, in order, with key and properties."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from aio_pika import ExchangeType, Message, connect
from aio_pika.abc import AbstractChannel, AbstractConnection

from bus.errors import BadCredentials, BrokerRefused, OperationRefused, Unavailable
from bus.protocol import Envelope, Inbox, QueueSpec
from bus.rabbit import RabbitTransport
from bus.rabbit.connection import dial, streams_of
from bus.rabbit.fast_channels.channel import BulkChannel
from bus.rabbit.fast_channels.frames import Post
from bus.rabbit.topology import BrokerNames
from deploy.servers import RabbitMQ
from features.broker_forwarding import forwarding
from features.broker_forwarding.forwarding import Forwarder
from features.broker_forwarding.transfer import PREFETCH
from tests.support.envelopes import a_letter, an_envelope, numbers, publish, take
from tests.support.servers import ExternalServer, url_of
from tests.support.waiting import in_time, until

pytestmark = pytest.mark.services

KEYS = ("build.requested", "build.ended.*")
SPEC = QueueSpec("worker:q", KEYS)


@dataclass
class TwoRabbits:
    """An old and a new broker, with a connection of a worker to each."""

    old_url: str
    new_url: str
    names: BrokerNames
    old: RabbitTransport
    new: RabbitTransport

    def name(self, queue: str = SPEC.name) -> str:
        return self.names.queue(queue)

    def forwarder(self, *queues: str, **more: Any) -> Forwarder:
        names = queues or (self.name(),)
        return Forwarder(self.old_url, self.new_url, self.names, names, poll_seconds=0.05, **more)

    @asynccontextmanager
    async def forwarding(self, *queues: str) -> AsyncIterator[Forwarder]:
        forwarder, stopping = self.forwarder(*queues), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(forwarder.run(stopping))
            yield forwarder
            stopping.set()

    async def forward_all(self, *queues: str) -> Forwarder:
        """Forward until all queues are empty."""
        async with self.forwarding(*queues) as forwarder:
            await until(lambda: forwarder.idle_since is not None)
        return forwarder


@pytest.fixture
async def brokers(amqp_url: str, restarted_rabbitmq: RabbitMQ, bus_name: str) -> AsyncIterator[TwoRabbits]:
    new_url = url_of(restarted_rabbitmq)
    old, new = (RabbitTransport(url, exchange=bus_name) for url in (amqp_url, new_url))
    async with _opened(old), _opened(new):
        await old.declare(SPEC)
        await new.declare(SPEC)
        yield TwoRabbits(amqp_url, new_url, BrokerNames(bus_name), old, new)


@asynccontextmanager
async def _opened(transport: RabbitTransport) -> AsyncIterator[None]:
    await transport.open()
    try:
        yield
    finally:
        await transport.close()


@asynccontextmanager
async def plain_channel(url: str) -> AsyncIterator[AbstractChannel]:
    connection = await connect(url)
    async with connection:
        yield await connection.channel(publisher_confirms=True)


async def envelopes_in(inbox: Inbox, count: int) -> list[Envelope]:
    found = []
    for _ in range(count):
        delivery = await take(inbox)
        assert not delivery.problem
        found.append(delivery.envelope)
        delivery.done()
    return found


async def test_a_workers_queue_arrives_in_order_with_the_keys_that_clients_used(brokers: TwoRabbits) -> None:
    sent = [
        an_envelope(
            number,
            key=("build.requested", "build.ended.c1", "build.ended.c2")[number % 3],
            correlation="story",
            reply_to="client",
            sent_at=1_700_000_000.5,
        )
        for number in range(3 * PREFETCH)
    ]
    for start in range(0, len(sent), 50):  # some share an AMQP message, others do not
        await publish(brokers.old, *sent[start : start + 50])
    await brokers.forward_all()
    arrived = await envelopes_in(await brokers.new.consume(SPEC, 100), len(sent))
    assert {envelope.id: envelope for envelope in arrived} == {envelope.id: envelope for envelope in sent}
    for key in {envelope.key for envelope in sent}:
        order = [envelope.id for envelope in sent if envelope.key == key]
        assert [envelope.id for envelope in arrived if envelope.key == key] == order
    assert await brokers.old.waiting(SPEC.name) == 0


async def test_messages_that_a_stopped_worker_returned_keep_the_key_that_they_state(
    brokers: TwoRabbits,
) -> None:
    returned = [an_envelope(number, key="build.ended.c1", attempt=2) for number in range(4)]
    await brokers.old._put_back(SPEC.name, returned[:1])
    await brokers.old._put_back(SPEC.name, returned[1:])  # which share an AMQP message
    await brokers.forward_all()
    assert await envelopes_in(await brokers.new.consume(SPEC, 100), 4) == returned


@pytest.fixture
def url_of_another_user(rabbitmq: RabbitMQ | ExternalServer, bus_name: str) -> Iterator[str]:
    if isinstance(rabbitmq, ExternalServer):
        pytest.skip("a user of RabbitMQ is made, and an external one was given")
    rabbitmq.control("add_user", bus_name, "secret")
    rabbitmq.control("set_permissions", bus_name, ".*", ".*", ".*")
    yield rabbitmq.url.replace("guest:guest@", f"{bus_name}:secret@")
    rabbitmq.control("delete_user", bus_name)


async def test_a_plain_queue_receives_key_and_properties_and_the_user_of_the_new_broker(
    brokers: TwoRabbits, url_of_another_user: str, bus_name: str
) -> None:
    name, when = brokers.name("client.shop.0"), datetime(2026, 11, 22, tzinfo=UTC)
    for url in (brokers.old_url, brokers.new_url):
        async with plain_channel(url) as channel:
            queue = await channel.declare_queue(name, durable=True)
            await queue.bind(brokers.names.exchange, "build.ended.*.shop")
    async with plain_channel(url_of_another_user) as channel:
        exchange = await channel.get_exchange(brokers.names.exchange, ensure=False)
        for number in range(3):
            headers: dict[str, Any] = {"a": [1, {"b": 2}], "x-delivery-count": 3}
            message = Message(
                b"%d" % number, headers=headers, content_type="text/plain", content_encoding="utf-8",
                message_id="same", correlation_id="c", reply_to="r", type="T", app_id="app", timestamp=when,
                user_id=bus_name, priority=3,
            )  # fmt: skip
            await exchange.publish(message, "build.ended.c1.shop")
    assert (await brokers.forward_all(name)).forwarded == 3
    async with plain_channel(brokers.new_url) as channel:
        queue = await channel.get_queue(name)
        found: list[Any] = [await queue.get(no_ack=True) for _ in range(3)]
        assert [message.body for message in found] == [b"0", b"1", b"2"]
        for message in found:
            assert message.routing_key == "build.ended.c1.shop"
            assert (message.content_type, message.content_encoding) == ("text/plain", "utf-8")
            assert (message.message_id, message.correlation_id) == ("same", "c")
            assert (message.reply_to, message.type, message.app_id) == ("r", "T", "app")
            assert (message.timestamp, message.headers) == (when, {"a": [1, {"b": 2}]})
            assert (message.delivery_mode, message.user_id, message.priority) == (2, "guest", 3)
        with pytest.raises(Exception, match="no exchange"):
            await channel.get_exchange(f"{brokers.names.exchange}.forward.{name}")


async def test_delayed_messages_and_dead_letters_arrive_where_they_were(brokers: TwoRabbits) -> None:
    for transport in (brokers.old, brokers.new):
        await transport._link.declare_dead()
        await transport._link.declare_delay(1000)
    delayed = an_envelope(1, key="build.ended.c1")
    await brokers.old.delay(SPEC.name, delayed, 1.0)
    letters = [a_letter(1), a_letter(2, queue="conductor.c1:build.placed")]
    for letter in letters:
        await brokers.old.store_dead_letter(letter)
    before = await brokers.old.dead_letters()
    names = brokers.names
    await brokers.forward_all(names.dead, f"{names.delay}.1000", names.unrouted)
    assert await brokers.new.dead_letters() == before
    assert {letter.cell for letter in before} == {"", "c1"}
    assert await brokers.old.dead_letters() == []
    [arrived] = await envelopes_in(await brokers.new.consume(SPEC, 10), 1)
    assert arrived == delayed


async def test_refused_messages_stay_refused_at_the_new_broker(brokers: TwoRabbits) -> None:
    """Messages from a client's exchange, or dead-lettered by a client's queue, must stay refused."""
    async with plain_channel(brokers.old_url) as channel:
        foreign = await channel.declare_exchange(f"{brokers.name()}.x", ExchangeType.TOPIC)
        await (await channel.get_queue(brokers.name())).bind(foreign, "#")
        await foreign.publish(Message(b"{}", message_id="1"), "build.requested")
        berth = await channel.get_exchange(brokers.names.exchange, ensure=False)
        deaths: dict[str, Any] = {"x-death": [{"queue": "another", "reason": "expired", "count": 1}]}
        await berth.publish(Message(b"{}", message_id="2", headers=deaths), "build.requested")
        await berth.publish(Message(b"no frame", message_id="3", type="berth.frame"), "build.requested")
    await brokers.forward_all()
    inbox = await brokers.new.consume(SPEC, 10)
    for _ in range(3):
        delivery = await take(inbox)
        assert "was published to the exchange" in delivery.problem or "forwarded by" in delivery.problem
        delivery.done()


async def test_a_key_inside_a_message_does_not_replace_its_routing_key(brokers: TwoRabbits) -> None:
    async with plain_channel(brokers.old_url) as channel:
        berth = await channel.get_exchange(brokers.names.exchange, ensure=False)
        forged: dict[str, Any] = {"key": "client.other", "suspect-of": "worker:q", "strikes": 2}
        await berth.publish(Message(b"{}", message_id="1", headers=forged), "build.requested")
    await brokers.forward_all()
    [arrived] = await envelopes_in(await brokers.new.consume(SPEC, 10), 1)
    assert (arrived.key, arrived.suspect_of, arrived.strikes) == ("build.requested", "", 0)


async def test_a_message_stays_at_the_old_broker_until_the_new_one_has_confirmed_it(
    brokers: TwoRabbits, monkeypatch: pytest.MonkeyPatch
) -> None:
    unconfirmed, real = asyncio.Event(), BulkChannel.publish

    async def without_confirm(channel: BulkChannel, post: Post) -> None:
        await real(channel, post)
        if post.exchange.startswith(brokers.names.exchange):
            unconfirmed.set()
            await asyncio.Event().wait()

    await publish(brokers.old, *map(an_envelope, range(5)))
    forwarder = brokers.forwarder()
    with monkeypatch.context() as patch:
        patch.setattr(BulkChannel, "publish", without_confirm)
        running = asyncio.create_task(forwarder.run(asyncio.Event()))
        await in_time(unconfirmed.wait())
        running.cancel()  # as a crash would end it
        await asyncio.wait([running])
    assert sorted(await numbers(await brokers.old.consume(SPEC, 10), 5)) == list(range(5))


async def test_received_messages_are_completed_when_forwarding_stops(brokers: TwoRabbits) -> None:
    both = SPEC, QueueSpec("worker:second", KEYS)  # whose messages the old broker delivers alternately
    for transport in (brokers.old, brokers.new):
        await transport.declare(both[1])
    await publish(brokers.old, *(an_envelope(n, framed=False) for n in range(500)))
    queues = [brokers.name(spec.name) for spec in both]
    async with brokers.forwarding(*queues) as forwarder:
        await until(lambda: forwarder.in_hand or forwarder.forwarded)
    rest = await brokers.forward_all(*queues)
    assert forwarder.forwarded > 0 and rest.forwarded > 0
    assert [await brokers.new.waiting(spec.name) for spec in both] == [500, 500]  # none arrived twice


async def test_forwarding_continues_after_a_lost_connection_to_either_broker(
    brokers: TwoRabbits, restarted_rabbitmq: RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[AbstractConnection] = []

    async def noted(url: str) -> Any:
        opened.append(await dial(url))
        return opened[-1]

    monkeypatch.setattr(forwarding, "dial", noted)
    published: list[Envelope] = []
    inbox = await brokers.new.consume(SPEC, 1000)
    received: set[str] = set()

    async def read() -> None:
        while True:
            delivery = await inbox.get()
            received.add(delivery.envelope.id)
            delivery.done()

    async def write(count: int) -> None:
        for _ in range(count):
            envelope = an_envelope(len(published), framed=False)
            await publish(brokers.old, envelope)
            published.append(envelope)

    async with brokers.forwarding() as forwarder, asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        for broken in (0, 1, None):  # connection to the old broker, to the new one; restart of the new one
            writing = group.create_task(write(150))
            before = forwarder.forwarded
            await until(lambda before=before: forwarder.forwarded > before + 10)  # type: ignore[misc]
            if broken is None:
                await asyncio.to_thread(restarted_rabbitmq.restart)
            else:
                streams_of(opened[-2:][broken])[1].transport.abort()
            await writing
            await until(lambda: received >= {envelope.id for envelope in published})
        reading.cancel()
    assert len(opened) >= 8
    assert await brokers.old.waiting(SPEC.name) == 0


async def test_a_full_queue_of_the_new_broker_delays_only_its_own_messages(
    brokers: TwoRabbits, caplog: pytest.LogCaptureFixture
) -> None:
    full, other = brokers.name("client.full"), QueueSpec("worker:other", ("host.failed.c1",))
    for transport in (brokers.old, brokers.new):
        await transport.declare(other)
    async with plain_channel(brokers.old_url) as channel:
        await channel.declare_queue(full, durable=True)
        for number in range(5):
            await channel.default_exchange.publish(Message(b"%d" % number), full)
    async with plain_channel(brokers.new_url) as channel:
        limit: dict[str, Any] = {"x-max-length": 2, "x-overflow": "reject-publish"}
        queue = await channel.declare_queue(full, durable=True, arguments=limit)
        async with brokers.forwarding(full, brokers.name(other.name)) as forwarder:
            await until(lambda: "refuses messages" in caplog.text)
            await publish(brokers.old, an_envelope(7, key="host.failed.c1"))
            assert await numbers(await brokers.new.consume(other, 1), 1) == [7]
            bodies = list[bytes]()

            async def got_all() -> bool:
                message = await queue.get(no_ack=True, fail=False)
                bodies.extend([message.body] if message is not None else [])
                return len(bodies) == 5

            await until(got_all)
            await until(lambda: forwarder.forwarded == 6)
    assert sorted(bodies) == [b"0", b"1", b"2", b"3", b"4"]


async def test_consumers_of_the_old_broker_come_first(brokers: TwoRabbits) -> None:
    inbox = await brokers.old.consume(SPEC, 100)
    async with brokers.forwarding() as forwarder:
        await until(lambda: forwarder.idle_since is not None)
        await publish(brokers.old, *(an_envelope(number, framed=False) for number in range(20)))
        assert await numbers(inbox, 20) == list(range(20))
        await inbox.stop()
        await publish(brokers.old, an_envelope(20))
        assert await numbers(await brokers.new.consume(SPEC, 1), 1) == [20]
    assert forwarder.forwarded == 1


async def refusal(forwarder: Forwarder) -> Exception:
    with pytest.raises((OperationRefused, Unavailable, BrokerRefused)) as refused:
        await in_time(forwarder.run(asyncio.Event()))
    assert "secret" not in str(refused.value)
    return refused.value


async def test_an_impossible_forwarding_is_refused_with_a_remedy(brokers: TwoRabbits) -> None:
    only_old = QueueSpec("worker:old", ("host.failed.c1",))
    await brokers.old.declare(only_old)
    names = [brokers.name(), brokers.name(only_old.name)]
    found = await refusal(brokers.forwarder(*names))
    assert f"lacks queues of the old broker: {names[1]}. Import" in str(found)
    found = await refusal(brokers.forwarder("none", all_must_exist=True))
    assert str(found).endswith("has no queue none")
    other = brokers.forwarder()
    other.names = BrokerNames("other")  # workers would refuse messages with these names
    assert "has no exchange other: import" in str(await refusal(other))
    itself = brokers.forwarder()
    itself._new = brokers.old_url.replace("127.0.0.1", "localhost")
    assert "are the same broker" in str(await refusal(itself))
    wrong = brokers.forwarder()
    wrong._new = brokers.new_url.replace("guest:guest@", "guest:secret@")
    assert isinstance(await refusal(wrong), BadCredentials)
    unreachable = brokers.forwarder()
    unreachable._old = "amqp://guest:secret@127.0.0.1:1/"
    assert "127.0.0.1:1 cannot be reached" in str(await refusal(unreachable))


async def test_a_queue_that_is_deleted_meanwhile_is_named(brokers: TwoRabbits) -> None:
    name = brokers.name("client.gone")
    for url in (brokers.old_url, brokers.new_url):
        async with plain_channel(url) as channel:
            await channel.declare_queue(name, durable=True)
    async with plain_channel(brokers.old_url) as here, plain_channel(brokers.new_url) as there:
        forwarder = brokers.forwarder(name)
        running = asyncio.create_task(forwarder.run(asyncio.Event()))
        await here.default_exchange.publish(Message(b"{}"), name)
        await until(lambda: forwarder.forwarded == 1)
        await there.queue_delete(name)
        await here.default_exchange.publish(Message(b"{}"), name)
        with pytest.raises(OperationRefused, match=f"has no queue {name} any more: import the definitions"):
            await in_time(running)
    async with plain_channel(brokers.old_url) as channel:
        assert (await channel.get_queue(name)).declaration_result.message_count == 1
