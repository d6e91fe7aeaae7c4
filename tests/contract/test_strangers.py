"""Anyone may publish, with anything: it is taken for what it is worth, and never harms a reader."""

import re
from collections.abc import AsyncIterator

import pika
import pytest

from bus.codec import encode_frame
from bus.protocol import MAX_MESSAGE_BYTES, QueueSpec
from bus.rabbit import RabbitTransport
from tests.envelopes import an_envelope, publish, take

pytestmark = pytest.mark.services

QUEUE = QueueSpec("q", ("build.requested",))


@pytest.fixture
async def transport(amqp_url: str, bus_name: str) -> AsyncIterator[RabbitTransport]:
    transport = RabbitTransport(amqp_url, exchange=bus_name)
    await transport.open()
    yield transport
    await transport.close()


def publish_bare(amqp_url: str, exchange: str, body: bytes, said: pika.BasicProperties | None = None) -> None:
    """As a person with a small script does, message id and all left out."""
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    connection.channel().basic_publish(exchange, "build.requested", body, said)
    connection.close()


async def test_anyone_may_publish_with_nothing_but_a_body(
    amqp_url: str, transport: RabbitTransport, bus_name: str
) -> None:
    inbox = await transport.consume(QUEUE, 10)
    publish_bare(amqp_url, bus_name, b'{"n": 2}')
    delivery = await take(inbox)
    said = delivery.envelope
    assert (bytes(said.body), said.type, said.key) == (b'{"n": 2}', "", "build.requested")
    assert delivery.problem == ""
    delivery.requeue()
    assert re.fullmatch(r"[0-9a-f-]{36}", said.id)
    assert (await take(inbox)).envelope.id == said.id  # as often as it comes


STRANGE = {
    "a timestamp in nanoseconds": pika.BasicProperties(timestamp=1_700_000_000_000_000_000),
    "a timestamp out of any calendar": pika.BasicProperties(timestamp=2**63),
    "headers of other types": pika.BasicProperties(
        message_id="m",
        headers={
            "attempt": "many",
            "faults": {"a": [1, 2, None]},
            "first-died": [1],
            "sent_at": "nan",
            "causation_id": 7,
            "traceparent": True,
            "error": None,
            "key": 15,
            "x-delivery-count": "often",
        },
    ),
    "numbers beyond reason": pika.BasicProperties(
        headers={"attempt": 2**62, "faults": -5, "sent_at": "1e999"}
    ),
    "an expiry and a priority": pika.BasicProperties(
        expiration="60000", priority=9, app_id="x", user_id="guest"
    ),
}


@pytest.mark.parametrize("said", STRANGE.values(), ids=STRANGE.keys())
async def test_strange_properties_are_taken_for_what_they_are_worth(
    amqp_url: str, transport: RabbitTransport, bus_name: str, said: pika.BasicProperties
) -> None:
    inbox = await transport.consume(QUEUE, 10)
    publish_bare(amqp_url, bus_name, b'{"n": 2}', said)
    delivery = await take(inbox)
    assert bytes(delivery.envelope.body) == b'{"n": 2}'
    assert delivery.envelope.attempt >= 1
    assert delivery.envelope.faults >= 0
    await transport.delay("q", delivery.envelope, 0.1)  # and it can be sent on
    delivery.done()
    assert bytes((await take(inbox)).envelope.body) == b'{"n": 2}'


@pytest.mark.parametrize(
    ("body", "type_", "problem"),
    [
        (b"\xff\x00 no JSON", "berth.frame", "not a frame"),
        (b'{"an": "object"}', "berth.frame", "not a frame"),
        (b'[{"id": "1", "type": "T"}]', "berth.frame", "missing required field `key`"),
        (b"x" * (MAX_MESSAGE_BYTES + 1), "BuildRequested", f"is {MAX_MESSAGE_BYTES + 1} bytes"),
        (b"\xff\x00 no JSON", "BuildRequested", ""),  # left to whoever knows the type
        (b"", "", ""),
    ],
)
async def test_what_cannot_be_read_is_handed_out_with_its_bytes_and_the_problem(
    amqp_url: str, transport: RabbitTransport, bus_name: str, body: bytes, type_: str, problem: str
) -> None:
    inbox = await transport.consume(QUEUE, 10)
    publish_bare(amqp_url, bus_name, body, pika.BasicProperties(type=type_, message_id="m-1"))
    delivery = await take(inbox)
    assert problem in delivery.problem
    assert bool(problem) == bool(delivery.problem)
    said = delivery.envelope
    assert (bytes(said.body), said.id, said.key) == (body, "m-1", "build.requested")
    delivery.done()
    await publish(transport, an_envelope(1))
    assert (await take(inbox)).problem == ""


async def test_an_empty_frame_is_passed_over(
    amqp_url: str, transport: RabbitTransport, bus_name: str
) -> None:
    inbox = await transport.consume(QUEUE, 10)
    publish_bare(amqp_url, bus_name, encode_frame([]), pika.BasicProperties(type="berth.frame"))
    await publish(transport, sent := an_envelope(1))
    assert (await take(inbox)).envelope.id == sent.id
