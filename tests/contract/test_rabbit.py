"""The RabbitMQ transport as RabbitMQ and other clients see it."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pika
import pytest
from aio_pika import ExchangeType, connect
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from pika.adapters.blocking_connection import BlockingChannel

from berth import dead_letters
from berth.doctor.judgement import RABBITMQ
from bus import topics
from bus.clock import Clock
from bus.context import envelope_of
from bus.delivery.runner import Bus
from bus.errors import BrokerRefused, Unavailable
from bus.messages import BuildRequested, HostFailed
from bus.protocol import (
    MAX_MESSAGE_BYTES,
    UNCOUNTED,
    UNVERIFIED,
    DeadLetter,
    Delivery,
    Envelope,
    QueueSpec,
    encode_frame,
)
from bus.rabbit import RabbitTransport
from bus.rabbit.amqp_messages import client_of, routing_of, sender_of
from bus.rabbit.connection import dial
from bus.rabbit.consuming import RabbitInbox
from bus.rabbit.fast_channels.frames import KEPT_BYTES, Properties, arrived
from bus.rabbit.topology import BrokerNames
from bus.requests import Flavor
from bus.worker import Worker, on
from tests.support.envelopes import an_envelope, buried, number_in, publish, take
from tests.support.ids import uid
from tests.support.waiting import patience, until

pytestmark = pytest.mark.services

QUEUE = QueueSpec("q", ("build.requested",))


@pytest.fixture
async def channel(amqp_url: str) -> AsyncIterator[AbstractChannel]:
    """Yield a channel of a plain AMQP client to the same broker."""
    connection = await connect(amqp_url)
    yield await connection.channel()
    await connection.close()


async def fetch(channel: AbstractChannel, queue: str) -> list[AbstractIncomingMessage]:
    """Receive and return all AMQP messages in a queue."""
    found = []
    named = await channel.get_queue(queue)
    while (message := await named.get(no_ack=True, fail=False)) is not None:
        found.append(message)
    return found


async def test_the_broker_under_test_is_the_wanted_version(amqp_url: str) -> None:
    """With BERTH_TEST_RABBITMQ the version is 4, else any version that `berth doctor` accepts."""
    connection = await dial(amqp_url)
    assert connection.transport is not None
    version = str(connection.transport.connection.server_properties["version"])
    await connection.close()
    major, minor = map(int, version.split(".")[:2])
    if os.environ.get("BERTH_TEST_RABBITMQ"):
        assert major == 4, f"the broker is {version}"
    else:
        assert (major, minor) >= RABBITMQ, f"the broker is {version}"


async def test_few_large_messages_are_prefetched(transport: RabbitTransport) -> None:
    """The broker counts messages, not bytes: hundreds in advance would be hundreds of megabytes."""
    inbox = await transport.consume(QUEUE, 1000)
    assert isinstance(inbox, RabbitInbox)

    async def settled(count: int) -> None:
        for _ in range(count):
            (await take(inbox)).done()

    def in_advance() -> int:
        assert inbox._reading is not None
        return inbox._reading.in_advance

    def are_many() -> bool:
        return in_advance() >= 512 / 4  # the count is changed only for a factor of four

    await asyncio.gather(*(publish(transport, an_envelope(n, framed=False)) for n in range(100)))
    await settled(100)
    await until(are_many)
    body = msgspec.Raw(b'"%s"' % (b"x" * (1024 * 1024 - 2)))
    await publish(transport, an_envelope(body=body))
    await until(lambda: in_advance() == 16)
    await settled(1)
    await asyncio.gather(*(publish(transport, an_envelope(n, framed=False)) for n in range(100)))
    await settled(100)
    await until(are_many)  # afterwards the count returns to its former value


# Frames


async def test_messages_of_one_key_share_amqp_messages(
    transport: RabbitTransport, channel: AbstractChannel, bus_name: str
) -> None:
    await transport.declare(QUEUE)
    await asyncio.gather(*(publish(transport, an_envelope(number)) for number in range(1000)))
    messages = await fetch(channel, f"{bus_name}:q")
    assert len(messages) <= 20
    envelopes = [entry for message in messages for entry in json.loads(message.body)]
    assert [entry["body"]["n"] for entry in envelopes] == list(range(1000))
    assert max(len(json.loads(message.body)) for message in messages) == 256


async def test_frames_stay_small(transport: RabbitTransport, channel: AbstractChannel, bus_name: str) -> None:
    await transport.declare(QUEUE)
    body = msgspec.Raw(json.dumps("x" * 50_000).encode())
    await publish(transport, *(an_envelope(body=body) for _ in range(12)))
    messages = await fetch(channel, f"{bus_name}:q")
    assert len(messages) == 3
    assert all(len(message.body) <= 256 * 1024 for message in messages)


async def test_envelopes_that_may_not_share_a_frame_are_sent_alone(
    transport: RabbitTransport, channel: AbstractChannel, bus_name: str
) -> None:
    await transport.declare(QUEUE)
    await publish(transport, *(an_envelope(number, framed=number == 1) for number in range(5)))
    assert len(await fetch(channel, f"{bus_name}:q")) == 5


async def test_a_message_is_json_that_any_client_can_read(
    transport: RabbitTransport, channel: AbstractChannel, bus_name: str
) -> None:
    await transport.declare(QUEUE)
    sent = an_envelope(
        1, correlation="story", causation="cause", reply_to="reply:1", sent_at=1_700_000_000.75, attempt=2
    )
    await publish(transport, sent)
    (message,) = await fetch(channel, f"{bus_name}:q")
    assert json.loads(message.body) == {"n": 1}
    assert (message.content_type, message.delivery_mode, message.type) == ("application/json", 2, "T")
    assert (message.message_id, message.correlation_id, message.reply_to) == (sent.id, "story", "reply:1")
    assert message.timestamp == datetime.fromtimestamp(1_700_000_000, UTC)
    headers = {key: value for key, value in message.headers.items() if not key.startswith("x-")}
    assert headers == {"causation_id": "cause", "sent_at": "1700000000.75", "attempt": 2}


async def test_a_dead_letter_explains_itself_to_any_client(
    transport: RabbitTransport, channel: AbstractChannel, bus_name: str
) -> None:
    letter = DeadLetter(
        id="i" * 300,
        queue="scheduler:build.requested",
        key="build.requested",
        type="BuildRequested",
        reason="\N{SNOWMAN}" * 10_000,
        first_died=1.5,
        died=2.5,
        attempt=2,
        correlation="c" * 300,
        body=b"{",
        traceback="line\n" * 50_000 + "ValueError: the last line",
    )
    await transport.store_dead_letter(letter)
    (kept,) = await transport.dead_letters()
    assert letter.reason.startswith(kept.reason)
    assert kept.traceback.endswith("ValueError: the last line")
    (message,) = await fetch(channel, f"{bus_name}.dead")
    headers = message.headers
    assert message.body == b"{"
    assert len(str(headers["x-reason"]).encode()) <= 8 * 1024
    assert (headers["x-queue"], headers["x-attempt"]) == ("scheduler:build.requested", 2)


async def test_a_queue_with_other_properties_is_refused_by_name(
    transport: RabbitTransport, channel: AbstractChannel, bus_name: str
) -> None:
    await channel.declare_queue(f"{bus_name}:q", durable=True)
    with pytest.raises(
        BrokerRefused, match=f"the queue {bus_name}:q exists with other properties .* delete it"
    ):
        await transport.declare(QUEUE)
    await transport.declare(QueueSpec("other", ("build.requested",)))  # the connection is still usable


async def test_classic_queues_are_used_without_quorum(amqp_url: str, bus_name: str) -> None:
    transport = RabbitTransport(amqp_url, exchange=bus_name, quorum=False)
    await transport.open()
    inbox = await transport.consume(QUEUE, 10)
    await transport.delay("q", an_envelope(1), 0.1)
    delivery = await take(inbox)
    assert number_in(delivery) == 1
    await transport.close()
    await transport.open()
    assert (await take(await transport.consume(QUEUE, 10))).crashes == UNCOUNTED
    await transport.close()


async def test_a_message_may_be_requeued_more_often_than_the_default_limit_of_rabbitmq_4(
    transport: RabbitTransport,
) -> None:
    """Without an own `x-delivery-limit`, a quorum queue drops a message at its 21st redelivery."""
    inbox = await transport.consume(QUEUE, 10)
    await publish(transport, an_envelope(1))
    for _ in range(25):
        (await take(inbox)).requeue()
    delivery = await take(inbox)
    assert (number_in(delivery), delivery.crashes) == (1, 25), "each of our requeues counts"
    delivery.done()


async def test_a_refused_publication_does_not_affect_other_publications(
    amqp_url: str, channel: AbstractChannel, bus_name: str
) -> None:
    await channel.declare_exchange(bus_name, ExchangeType.TOPIC, durable=True, internal=True)
    transport = RabbitTransport(amqp_url, exchange=bus_name, poll_seconds=0.1)
    await transport.open()
    inbox = await transport.consume(QUEUE, 1000)
    outcomes = await asyncio.gather(
        *(publish(transport, an_envelope(number, f"k.{number}")) for number in range(3)),
        *(transport.delay("q", an_envelope(number, framed=False), 0.0) for number in range(20)),
        return_exceptions=True,
    )
    for refused in outcomes[:3]:
        assert isinstance(refused, BrokerRefused)
        assert "internal exchange" in str(refused)
    assert outcomes[3:] == [None] * 20
    numbers = {msgspec.json.decode((await take(inbox)).envelope.body)["n"] for _ in range(20)}
    assert numbers == set(range(20))
    await transport.close()


async def test_a_delayed_message_is_delivered_once_its_queue_is_bound_again(
    amqp_url: str, transport: RabbitTransport, channel: AbstractChannel, bus_name: str
) -> None:
    inbox = await transport.consume(QUEUE, 10)
    queue = await channel.get_queue(f"{bus_name}:q")
    await queue.unbind(f"{bus_name}.queues", f"*.{bus_name}:q")
    delayed = an_envelope(1, attempt=3, faults=2, causation="cause")
    await transport.delay("q", delayed, 0.1)

    async def kept() -> bool:
        return (await channel.get_queue(f"{bus_name}.dead.0")).declaration_result.message_count == 1

    await until(kept)
    await queue.bind(f"{bus_name}.queues", f"*.{bus_name}:q")
    holder_consumer = RabbitTransport(amqp_url, exchange=bus_name, declares_shared=True)
    await holder_consumer.open()
    assert (await take(inbox)).envelope == delayed
    assert not await holder_consumer.dead_letters()
    await holder_consumer.close()


async def test_a_delayed_message_of_a_deleted_queue_is_a_dead_letter(
    amqp_url: str, channel: AbstractChannel, bus_name: str
) -> None:
    transport = RabbitTransport(amqp_url, exchange=bus_name, declares_shared=True)
    await transport.open()
    await transport.declare(QUEUE)
    await transport.delay("q", an_envelope(1), 0.5)
    await channel.queue_delete(f"{bus_name}:q")
    (letter,) = await buried(transport)
    assert (letter.body, letter.key, letter.queue) == (b'{"n":1}', "build.requested", "q")
    assert letter.reason == "the queue q was deleted"
    await transport.close()


@pytest.mark.parametrize("gone", [".dead", ".delay.100"])
async def test_deleted_queues_of_berth_are_declared_again(
    transport: RabbitTransport, channel: AbstractChannel, bus_name: str, gone: str
) -> None:
    inbox = await transport.consume(QUEUE, 10)
    await transport.delay("q", an_envelope(1), 0.1)
    (await take(inbox)).done()
    await channel.queue_delete(bus_name + gone)
    await transport.delay("q", an_envelope(2), 0.1)
    assert number_in(await take(inbox)) == 2
    await transport.store_dead_letter(DeadLetter("1", "q", "k", "T", "why", 1.0, 1.0, 1, "", b""))
    assert len(await transport.dead_letters()) == 1


@pytest.mark.parametrize(
    ("url", "reply"),
    [
        ("amqp://guest:s3cret@127.0.0.1:1/", "guest@127.0.0.1:1 cannot be reached"),
        ("amqp://guest:s3cret@{broker}/", "does not accept these credentials"),
        ("amqp://guest:guest@{broker}/nowhere", "vhost nowhere does not let us into the virtual host"),
    ],
)
async def test_a_login_failure_is_reported_without_the_password(
    amqp_url: str, url: str, reply: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = amqp_url.rpartition("@")[2].rstrip("/")
    transport = RabbitTransport(url.format(broker=broker), patience=0.2)
    with caplog.at_level("DEBUG"), pytest.raises(Unavailable, match=reply) as problem:
        await transport.open()
    assert "s3cret" not in f"{problem.value!r} {problem.value.__cause__!r} {caplog.text}"


async def test_waiting_for_a_broker_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    transport = RabbitTransport("amqp://guest:guest@127.0.0.1:1/", patience=1.0)
    with pytest.raises(Unavailable, match=r"tried for 1 s"):
        await transport.open()
    [events] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "cannot be reached" in events and events.endswith("trying again for 1 s")


@pytest.mark.parametrize("url", ["http://guest:s3cret@x/", "s3cret", "amqp://guest:s3cret@x:port/"])
def test_an_invalid_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"must (look like|begin with) amqp://") as problem:
        RabbitTransport(url)
    assert "s3cret" not in str(problem.value)


async def test_publishing_after_closing_is_refused(transport: RabbitTransport) -> None:
    await transport.close()
    with pytest.raises(Unavailable, match="closed"):
        await publish(transport, an_envelope())


async def test_a_closing_transport_finishes_its_check_of_the_exchanges(
    amqp_url: str, bus_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(40):
        transport = RabbitTransport(amqp_url, exchange=bus_name, poll_seconds=0.0)
        await transport.open()
        await asyncio.sleep(number / 2000)  # at another moment each time
        await transport.close()
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []


FAILURE = HostFailed(root=uid(7), host="h", agent="a", cell="c1", build=uid(1), attempt=1)


@pytest.fixture
def blocking_channel(amqp_url: str) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    yield connection.channel()
    connection.close()


def a_forged_envelope() -> Envelope:
    return envelope_of(FAILURE, Clock())


@pytest.mark.parametrize(
    ("key", "headers", "framed"),
    [
        pytest.param("host.failed.c2", {"key": "host.failed.c1"}, False, id="a header"),
        pytest.param("host.failed.c1", {"CC": ["host.failed.c2"]}, False, id="an additional key"),
        pytest.param("host.failed.c1", {"BCC": ["host.failed.c2"]}, False, id="a hidden additional key"),
        pytest.param("host.failed.c2", {}, True, id="the envelopes of a frame"),
    ],
)
async def test_only_the_routing_key_is_the_key_of_a_message(
    transport: RabbitTransport,
    bus_name: str,
    blocking_channel: BlockingChannel,
    key: str,
    headers: dict[str, Any],
    framed: bool,
) -> None:
    inbox = await transport.consume(QueueSpec("reader", ("host.failed.c2",)), 10)
    forged = a_forged_envelope()
    reply = pika.BasicProperties(headers=headers, type="berth.frame" if framed else None)
    body = encode_frame([forged, forged]) if framed else bytes(forged.body)
    blocking_channel.basic_publish(bus_name, key, body, reply)
    delivery = await take(inbox)
    assert (delivery.envelope.key, delivery.problem) == (key, "")


@pytest.mark.parametrize(
    ("exchange", "user", "sender"),
    [
        pytest.param("{name}", "", "", id="the key proves it"),
        pytest.param("{name}", "{name}.client.shop", "shop", id="the user of a client"),
        pytest.param("mine", "{name}.client.shop", "shop", id="the user of a client, by its exchange"),
        pytest.param("mybus:client.shop.0", "", "shop", id="by an exchange that only a client may declare"),
        pytest.param("mine", "", UNVERIFIED, id="by a foreign exchange"),
        pytest.param("mine", "{name}.client", UNVERIFIED, id="another user, by a foreign exchange"),
    ],
)
def test_the_sender_of_a_message_is_what_the_broker_has_verified(
    exchange: str, user: str, sender: str
) -> None:
    names = BrokerNames("mybus")
    properties = Properties(user_id=user.format(name="mybus") or None)
    message = arrived(1, exchange.format(name="mybus"), "client.bank", False, b"{}", properties, 2)
    _, _, problem = routing_of(message, names, "mybus:scheduler:client.+")
    assert client_of(message, names, sender_of(message, names) if problem else "") == sender


async def test_an_additional_key_does_not_reach_another_queue_by_its_name(
    transport: RabbitTransport, bus_name: str, blocking_channel: BlockingChannel
) -> None:
    inbox = await transport.consume(QueueSpec("reader", ("host.failed.c2",)), 10)
    reply = pika.BasicProperties(headers={"CC": [f"0.{bus_name}:reader"], "key": "host.failed.c2"})
    blocking_channel.basic_publish(f"{bus_name}.queues", "0.mine", bytes(a_forged_envelope().body), reply)
    delivery = await take(inbox)
    assert "additional key" in delivery.problem
    assert delivery.sender == "0.mine"


@pytest.mark.parametrize(
    ("exchange", "key"),
    [
        pytest.param("{name}", "host.failed.c2", id="by the exchange"),
        pytest.param("{name}.queues", "0.{name}:reader", id="by the queue's name"),
    ],
)
async def test_messages_forwarded_by_a_foreign_queue_are_refused(
    transport: RabbitTransport, bus_name: str, blocking_channel: BlockingChannel, exchange: str, key: str
) -> None:
    inbox = await transport.consume(QueueSpec("reader", ("host.failed.c2",)), 10)
    mine = blocking_channel.queue_declare(
        "",
        exclusive=True,
        arguments={
            "x-message-ttl": 0,
            "x-dead-letter-exchange": exchange.format(name=bus_name),
            "x-dead-letter-routing-key": key.format(name=bus_name),
        },
    ).method.queue
    reply = pika.BasicProperties(headers={"key": "host.failed.c2"})
    blocking_channel.basic_publish("", mine, bytes(a_forged_envelope().body), reply)
    delivery = await take(inbox)
    assert mine in delivery.problem
    assert delivery.sender == mine


@pytest.mark.parametrize("count", [1, 2], ids=["a message", "a frame"])
async def test_refused_messages_stay_refused_when_the_broker_delivers_them_again(
    amqp_url: str, bus_name: str, blocking_channel: BlockingChannel, count: int
) -> None:
    """RabbitMQ delivers messages again after a crash, a stop, or a change of the prefetch count. An operator
    replays their dead letters.
    """
    handled, stays = list[str](), list[str]()

    async def handle(request: BuildRequested) -> None:
        handled.append(request.request)

    transport = RabbitTransport(amqp_url, exchange=bus_name)
    forged = [envelope_of(a_request_of(uid(100 + number)), Clock()) for number in range(count)]
    worker = Worker("w", consumes=[on(topics.BUILD_REQUESTED, handle)])
    async with Bus(transport) as bus, asyncio.TaskGroup() as group, patience():
        spec = worker.queue_of(worker.consumes[0])
        inbox = await transport.consume(spec, 10)
        blocking_channel.exchange_declare("outside", "topic", auto_delete=True)
        blocking_channel.exchange_bind(bus_name, "outside", "#")
        body = bytes(forged[0].body) if count == 1 else encode_frame(forged)
        reply = pika.BasicProperties(type="BuildRequested" if count == 1 else "berth.frame")
        blocking_channel.basic_publish("outside", "build.requested", body, reply)
        (await take(inbox)).requeue()
        await inbox.stop()
        stopping = asyncio.Event()
        group.create_task(bus.serve(worker, stopping))
        await bus.publish(a_request_of(REQUEST))
        letters = await buried(transport)
        await until(lambda: handled)
        assert await dead_letters.replay(transport, Clock(), None, stays.append) == 0
        assert len(await transport.dead_letters()) == 1
        stopping.set()
    assert ["published to the exchange outside" in letter.reason for letter in letters] == [True]
    assert [letter.sender for letter in letters] == ["outside"]
    assert "refused because of its sender, 'outside'" in stays[0]
    assert handled == [REQUEST]


async def test_a_delayed_message_of_berth_is_accepted(transport: RabbitTransport) -> None:
    inbox = await transport.consume(QueueSpec("reader", ("host.failed.c2",)), 10)
    envelope = msgspec.structs.replace(a_forged_envelope(), key="host.failed.c2")
    await transport.delay("reader", envelope, 0.1)
    delivery: Delivery = await take(inbox)
    assert (delivery.envelope.key, delivery.problem) == ("host.failed.c2", "")


async def test_published_messages_carry_the_user_id_that_the_broker_checks(
    transport: RabbitTransport, bus_name: str, blocking_channel: BlockingChannel
) -> None:
    mine = blocking_channel.queue_declare("", exclusive=True).method.queue
    blocking_channel.queue_bind(mine, bus_name, "host.failed.c1")
    await transport.publish([a_forged_envelope()], expected=[True])
    _, reply, _ = next(blocking_channel.consume(mine, inactivity_timeout=10))
    blocking_channel.cancel()
    assert reply is not None and reply.user_id == "guest"


REQUEST = "00000000-0000-0000-0000-000000000001"


def a_request_of(id_: str) -> BuildRequested:
    return BuildRequested(request=id_, instances=(id_,), flavor=Flavor(name="small", vcpus=1))


def publish_bare(
    amqp_url: str, exchange: str, body: bytes, reply: pika.BasicProperties | None = None
) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    connection.channel().basic_publish(exchange, "build.requested", body, reply)
    connection.close()


async def test_a_message_with_only_a_body_is_accepted(
    amqp_url: str, transport: RabbitTransport, bus_name: str
) -> None:
    inbox = await transport.consume(QUEUE, 10)
    publish_bare(amqp_url, bus_name, b'{"n": 2}')
    delivery = await take(inbox)
    reply = delivery.envelope
    assert (bytes(reply.body), reply.type, reply.key) == (b'{"n": 2}', "", "build.requested")
    assert delivery.problem == ""
    delivery.requeue()
    assert re.fullmatch(r"[0-9a-f-]{36}", reply.id)
    assert (await take(inbox)).envelope.id == reply.id  # also if repeated


@pytest.mark.parametrize(
    ("body", "type_", "problem"),
    [
        (b"\xff\x00 no JSON", "berth.frame", "not a frame"),
        (b'{"an": "object"}', "berth.frame", "not a frame"),
        (b'[{"id": "1", "type": "T"}]', "berth.frame", "missing required field `key`"),
        (b"x" * (MAX_MESSAGE_BYTES + 1), "BuildRequested", f"is {MAX_MESSAGE_BYTES + 1} bytes"),
        (b"\xff\x00 no JSON", "BuildRequested", ""),
        (b"", "", ""),
    ],
)
async def test_an_unreadable_message_is_delivered_with_its_bytes_and_the_problem(
    amqp_url: str, transport: RabbitTransport, bus_name: str, body: bytes, type_: str, problem: str
) -> None:
    inbox = await transport.consume(QUEUE, 10)
    publish_bare(amqp_url, bus_name, body, pika.BasicProperties(type=type_, message_id="m-1"))
    delivery = await take(inbox)
    assert problem in delivery.problem
    assert bool(problem) == bool(delivery.problem)
    reply = delivery.envelope
    received = body if len(body) <= MAX_MESSAGE_BYTES else body[:KEPT_BYTES]
    assert (bytes(reply.body), reply.id, reply.key) == (received, "m-1", "build.requested")
    delivery.done()
    await publish(transport, an_envelope(1))
    assert (await take(inbox)).problem == ""


async def test_a_frame_of_more_than_256_envelopes_is_one_dead_letter(
    amqp_url: str, transport: RabbitTransport, bus_name: str
) -> None:
    """To dead-letter 26,000 empty envelopes one by one would delay other messages for more than a minute."""
    inbox = await transport.consume(QUEUE, 1000)
    empty = b'{"id":"","type":"","key":"","body":0}'
    frame = b"[" + b",".join([empty] * 26_000) + b"]"
    assert len(frame) < MAX_MESSAGE_BYTES
    publish_bare(amqp_url, bus_name, frame, pika.BasicProperties(type="berth.frame", message_id="m-1"))
    await publish(transport, sent := an_envelope(1))
    delivery = await take(inbox)
    assert delivery.problem == "not a frame: it holds 26000 envelopes; the bus carries at most 256"
    assert (bytes(delivery.envelope.body), delivery.envelope.id) == (frame, "m-1")
    assert (await take(inbox)).envelope.id == sent.id  # the next message follows immediately


async def test_an_empty_frame_is_ignored(amqp_url: str, transport: RabbitTransport, bus_name: str) -> None:
    inbox = await transport.consume(QUEUE, 10)
    publish_bare(amqp_url, bus_name, encode_frame([]), pika.BasicProperties(type="berth.frame"))
    await publish(transport, sent := an_envelope(1))
    assert (await take(inbox)).envelope.id == sent.id
