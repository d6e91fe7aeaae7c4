"""Message properties that RabbitMQ does not verify and consumers must not trust, such as additional keys."""

from collections.abc import Iterator

import msgspec
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from bus.clock import Clock
from bus.codec import encode_frame
from bus.context import envelope_of
from bus.messages import HostFailed
from bus.protocol import Delivery, Envelope, QueueSpec
from bus.rabbit import RabbitTransport
from tests.support.envelopes import take
from tests.support.ids import uid

pytestmark = pytest.mark.services

FAILURE = HostFailed(root=uid(7), host="h", agent="a", cell="c1", build=uid(1), attempt=1)


@pytest.fixture
def channel(amqp_url: str) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    yield connection.channel()
    connection.close()


def an_envelope() -> Envelope:
    return envelope_of(FAILURE, Clock())


async def test_the_key_is_the_one_it_was_published_under(
    transport: RabbitTransport, bus_name: str, channel: BlockingChannel
) -> None:
    inbox = await transport.consume(QueueSpec("reader", ("host.failed.c2",)), 10)
    said = pika.BasicProperties(headers={"key": "host.failed.c1"})
    channel.basic_publish(bus_name, "host.failed.c2", bytes(an_envelope().body), said)
    delivery = await take(inbox)
    assert (delivery.envelope.key, delivery.problem) == ("host.failed.c2", "")


async def test_messages_in_a_frame_have_the_key_of_the_frame(
    transport: RabbitTransport, bus_name: str, channel: BlockingChannel
) -> None:
    inbox = await transport.consume(QueueSpec("reader", ("host.failed.c2",)), 10)
    framed = encode_frame([an_envelope(), an_envelope()])
    channel.basic_publish(bus_name, "host.failed.c2", framed, pika.BasicProperties(type="berth.frame"))
    keys = [(await take(inbox)).envelope.key for _ in range(2)]
    assert keys == ["host.failed.c2", "host.failed.c2"]


@pytest.mark.parametrize("header", ["CC", "BCC"])
async def test_a_further_key_is_none(
    transport: RabbitTransport, bus_name: str, channel: BlockingChannel, header: str
) -> None:
    inbox = await transport.consume(QueueSpec("reader", ("host.failed.c2",)), 10)
    said = pika.BasicProperties(headers={header: ["host.failed.c2"]})
    channel.basic_publish(bus_name, "host.failed.c1", bytes(an_envelope().body), said)
    assert (await take(inbox)).envelope.key == "host.failed.c1"


async def test_an_additional_key_does_not_reach_another_queue_by_its_name(
    transport: RabbitTransport, bus_name: str, channel: BlockingChannel
) -> None:
    inbox = await transport.consume(QueueSpec("reader", ("host.failed.c2",)), 10)
    said = pika.BasicProperties(headers={"CC": [f"0.{bus_name}:reader"], "key": "host.failed.c2"})
    channel.basic_publish(f"{bus_name}.queues", "0.mine", bytes(an_envelope().body), said)
    assert "further key" in (await take(inbox)).problem


@pytest.mark.parametrize(
    ("exchange", "key"),
    [
        pytest.param("{name}", "host.failed.c2", id="by the exchange"),
        pytest.param("{name}.queues", "0.{name}:reader", id="by the queue's name"),
    ],
)
async def test_messages_forwarded_by_a_foreign_queue_are_refused(
    transport: RabbitTransport, bus_name: str, channel: BlockingChannel, exchange: str, key: str
) -> None:
    inbox = await transport.consume(QueueSpec("reader", ("host.failed.c2",)), 10)
    mine = channel.queue_declare(
        "",
        exclusive=True,
        arguments={
            "x-message-ttl": 0,
            "x-dead-letter-exchange": exchange.format(name=bus_name),
            "x-dead-letter-routing-key": key.format(name=bus_name),
        },
    ).method.queue
    said = pika.BasicProperties(headers={"key": "host.failed.c2"})
    channel.basic_publish("", mine, bytes(an_envelope().body), said)
    assert mine in (await take(inbox)).problem


async def test_a_message_that_we_delayed_is_accepted(transport: RabbitTransport) -> None:
    inbox = await transport.consume(QueueSpec("reader", ("host.failed.c2",)), 10)
    envelope = msgspec.structs.replace(an_envelope(), key="host.failed.c2")
    await transport.delay("reader", envelope, 0.1)
    delivery: Delivery = await take(inbox)
    assert (delivery.envelope.key, delivery.problem) == ("host.failed.c2", "")


async def test_published_messages_carry_the_user_id_that_the_broker_checks(
    transport: RabbitTransport, bus_name: str, channel: BlockingChannel
) -> None:
    mine = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(mine, bus_name, "host.failed.c1")
    await transport.publish([an_envelope()], expected=[True])
    _, said, _ = next(channel.consume(mine, inactivity_timeout=10))
    channel.cancel()
    assert said is not None and said.user_id == "guest"
