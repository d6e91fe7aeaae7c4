"""Anyone may publish, with anything: it is taken for what it is worth, and never harms a reader."""

import asyncio
import re

import pika
import pytest

from bus import topics
from bus.codec import encode_frame
from bus.context import envelope_of
from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from bus.protocol import MAX_FRAME_ENVELOPES, MAX_MESSAGE_BYTES, QueueSpec
from bus.rabbit import RabbitTransport
from bus.requests import Flavor
from bus.worker import Worker, on
from tests.support.envelopes import an_envelope, publish, take
from tests.support.waiting import DEADLINE

pytestmark = pytest.mark.services

QUEUE = QueueSpec("q", ("build.requested",))
REQUEST = "00000000-0000-0000-0000-000000000001"


def a_request_of(id_: str) -> BuildRequested:
    return BuildRequested(request=id_, instances=(id_,), flavor=Flavor(name="small", vcpus=1))


def publish_bare(amqp_url: str, exchange: str, body: bytes, said: pika.BasicProperties | None = None) -> None:
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
        (b"\xff\x00 no JSON", "BuildRequested", ""),
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


async def test_a_frame_of_more_than_256_envelopes_is_one_problem_and_not_thousands(
    amqp_url: str, transport: RabbitTransport, bus_name: str
) -> None:
    """Buried one by one, 26,000 empty envelopes held everybody else up for more than a minute."""
    inbox = await transport.consume(QUEUE, 1000)
    empty = b'{"id":"","type":"","key":"","body":0}'
    frame = b"[" + b",".join([empty] * 26_000) + b"]"
    assert len(frame) < MAX_MESSAGE_BYTES
    publish_bare(amqp_url, bus_name, frame, pika.BasicProperties(type="berth.frame", message_id="m-1"))
    await publish(transport, sent := an_envelope(1))
    delivery = await take(inbox)
    assert delivery.problem == "not a frame: it holds 26000 envelopes; the bus carries at most 256"
    assert (bytes(delivery.envelope.body), delivery.envelope.id) == (frame, "m-1")
    assert (await take(inbox)).envelope.id == sent.id  # and right behind it comes the next


async def test_a_frame_with_counts_beyond_reason_ends_like_any_other(amqp_url: str, bus_name: str) -> None:
    """No AMQP header held its letter: it came again for ever, and prefetch had room for no other."""
    served = asyncio.Event()

    async def stumble(request: BuildRequested) -> None:
        if request.request == REQUEST:
            served.set()
        else:
            raise ZeroDivisionError

    worker = Worker("w", consumes=[on(topics.BUILD_REQUESTED, stumble, concurrency=1)])
    stopping = asyncio.Event()
    transport = RabbitTransport(amqp_url, exchange=bus_name)
    async with Bus(transport) as bus, asyncio.TaskGroup() as group, asyncio.timeout(DEADLINE):
        await transport.declare(worker.queue_of(worker.consumes[0]))
        for _ in range(3):  # more than the prefetch
            forged = envelope_of(a_request_of(bus.clock.uuid()), bus.clock)
            forged.attempt = forged.faults = 2**63
            body = encode_frame([forged])
            publish_bare(amqp_url, bus_name, body, pika.BasicProperties(type="berth.frame"))
        await bus.publish(a_request_of(REQUEST))
        group.create_task(bus.serve(worker, stopping))
        await served.wait()
        while len(await transport.dead_letters()) < 3:
            await asyncio.sleep(0.01)
        stopping.set()


async def test_a_full_frame_is_read(amqp_url: str, transport: RabbitTransport, bus_name: str) -> None:
    inbox = await transport.consume(QUEUE, 1000)
    full = [an_envelope(number) for number in range(MAX_FRAME_ENVELOPES)]
    publish_bare(amqp_url, bus_name, encode_frame(full), pika.BasicProperties(type="berth.frame"))
    for envelope in full:
        assert (await take(inbox)).envelope.id == envelope.id


async def test_an_empty_frame_is_passed_over(
    amqp_url: str, transport: RabbitTransport, bus_name: str
) -> None:
    inbox = await transport.consume(QUEUE, 10)
    publish_bare(amqp_url, bus_name, encode_frame([]), pika.BasicProperties(type="berth.frame"))
    await publish(transport, sent := an_envelope(1))
    assert (await take(inbox)).envelope.id == sent.id
