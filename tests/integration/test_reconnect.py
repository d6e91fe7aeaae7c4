"""A broker that goes away and comes back, in the middle of everything."""

import asyncio
import itertools
import json
import os
import re
import secrets
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from bus.errors import Unroutable
from bus.protocol import QueueSpec
from bus.rabbit import RabbitTransport
from deploy.servers import Postgres, RabbitMQ
from tests.support.berth_processes import Up
from tests.support.envelopes import an_envelope, number_in
from tests.support.servers import a_module_database, crash, url_of
from tests.support.waiting import in_time

pytestmark = [pytest.mark.services, pytest.mark.slow]

DEADLINE = 90.0
PUT_OFF = 210.0
QUEUE = QueueSpec("q", ("build.requested",))


@pytest.fixture
def broker(restarted_rabbitmq: RabbitMQ) -> RabbitMQ:
    restarted_rabbitmq.start()
    return restarted_rabbitmq


@pytest.fixture
async def connect(broker: RabbitMQ, bus_name: str) -> AsyncIterator[Callable[[], RabbitTransport]]:
    made: list[RabbitTransport] = []

    def connect() -> RabbitTransport:
        made.append(RabbitTransport(broker.url, exchange=bus_name))
        return made[-1]

    yield connect
    for transport in made:
        await transport.close()


@pytest.mark.parametrize(
    "framed", [pytest.param(True, id="framed"), pytest.param(False, id="alone", marks=pytest.mark.soak)]
)
async def test_everything_published_arrives_although_the_broker_is_restarted_and_killed(
    broker: RabbitMQ, connect: Callable[[], RabbitTransport], framed: bool
) -> None:
    publisher, reader = connect(), connect()
    await publisher.open()
    await reader.open()
    inbox = await reader.consume(QUEUE, 50)
    numbers = itertools.count()
    published: set[int] = set()
    heard: set[int] = set()
    news = asyncio.Event()
    enough = False

    async def publish() -> None:
        while not enough:
            number = next(numbers)
            await publisher.publish([an_envelope(number, framed=framed)], expected=[True])
            published.add(number)
            await asyncio.sleep(0.02)

    async def read() -> None:
        while True:
            delivery = await inbox.get()
            heard.add(number_in(delivery))
            news.set()
            await asyncio.sleep(0)  # so that some are in hand when the broker goes away
            delivery.done()

    async def heard_until(what: Callable[[], bool]) -> None:
        while not what():
            news.clear()
            await news.wait()

    async def heard_more(count: int) -> None:
        goal = len(heard) + count
        await heard_until(lambda: len(heard) >= goal)

    async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        publishers = [group.create_task(publish()) for _ in range(50)]
        await heard_more(700)
        await asyncio.to_thread(broker.restart)
        await heard_more(700)
        # the clean restart went first: a quorum queue is not safe from a kill in its very first second
        await asyncio.to_thread(crash, broker)
        await heard_more(700)
        enough = True
        await asyncio.wait(publishers)
        await heard_until(lambda: published <= heard)
        reading.cancel()
    assert len(published) > 2000


async def test_queues_and_messages_survive_a_broker_restart(
    broker: RabbitMQ, connect: Callable[[], RabbitTransport]
) -> None:
    transport = connect()
    await transport.open()
    shared = await transport.consume(QUEUE, 10)
    private = await transport.consume(QueueSpec("mine", ("host.*",), durable=False), 10)
    await transport.declare(QueueSpec("later", ("later",)))
    await transport.delay("q", an_envelope(1), 0.5)
    await transport.publish([an_envelope(2, "later")], expected=[True])
    held = await in_time((await transport.consume(QueueSpec("later", ("later",)), 10)).get(), DEADLINE)
    await asyncio.to_thread(broker.restart)
    async with asyncio.timeout(DEADLINE):
        await transport.publish(
            [an_envelope(3), an_envelope(4, "host.reported")], expected=[True, True]
        )  # waits until there is a connection
    held.done()
    held.requeue()
    assert {number_in(await in_time(shared.get(), PUT_OFF)) for _ in range(2)} == {1, 3}
    assert number_in(await in_time(private.get(), DEADLINE)) == 4


async def test_held_messages_come_again_to_whoever_reads_after_the_reconnect(
    broker: RabbitMQ, connect: Callable[[], RabbitTransport]
) -> None:
    transport = connect()
    await transport.open()
    inbox = await transport.consume(QUEUE, 10)
    envelopes = [an_envelope(number) for number in range(4)]
    await transport.publish(envelopes, expected=[True] * 4)
    held = [await in_time(inbox.get(), DEADLINE) for _ in envelopes]
    await asyncio.to_thread(broker.restart)
    again = [await in_time(inbox.get(), DEADLINE) for _ in envelopes]
    assert sorted(map(number_in, again)) == [0, 1, 2, 3]
    for stale in held:
        stale.done()
    for delivery in again:
        delivery.done()
    await transport.publish([an_envelope(9)], expected=[True])
    assert number_in(await in_time(inbox.get(), DEADLINE)) == 9


async def test_publishers_and_declarers_wait_while_there_is_no_broker(
    broker: RabbitMQ, connect: Callable[[], RabbitTransport]
) -> None:
    transport = connect()
    await transport.open()
    await transport.declare(QUEUE)
    await asyncio.to_thread(broker.stop)
    publishing = asyncio.create_task(transport.publish([an_envelope(1)], expected=[True]))
    unheard = asyncio.create_task(transport.publish([an_envelope(1, "unheard")], expected=[True]))
    reading = asyncio.create_task(transport.consume(QUEUE, 10))
    burying = asyncio.create_task(transport.dead_letters())
    await asyncio.to_thread(broker.start)
    async with asyncio.timeout(DEADLINE):
        await publishing
        assert await burying == []
        assert number_in(await in_time((await reading).get(), DEADLINE)) == 1
        with pytest.raises(Unroutable):
            await unheard


async def test_publishers_wait_while_the_broker_is_short_of_memory(
    broker: RabbitMQ, connect: Callable[[], RabbitTransport]
) -> None:
    async def told(what: str) -> str:
        return await asyncio.to_thread(broker.control, *what.split())

    transport = connect()
    await transport.open()
    inbox = await transport.consume(QUEUE, 100)
    await told("set_vm_memory_high_watermark absolute 1MB")
    try:
        publishing = [
            asyncio.create_task(transport.publish([an_envelope(n)], expected=[True])) for n in range(50)
        ]
        async with asyncio.timeout(DEADLINE):
            while "blocked" not in await told("list_connections state"):
                pass
        late = asyncio.create_task(transport.publish([an_envelope(50)], expected=[True]))
        assert "blocked" in await told("list_connections state")
        assert not late.done()
    finally:  # other tests need it
        await told("set_vm_memory_high_watermark 0.4")
    await in_time(asyncio.gather(late, *publishing), DEADLINE)
    heard = [await in_time(inbox.get(), DEADLINE) for _ in range(51)]
    assert sorted(map(number_in, heard)) == list(range(51))


async def test_a_silent_broker_is_disconnected_and_reconnected(
    broker: RabbitMQ, bus_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    transport = RabbitTransport(f"{broker.url}?heartbeat=1", exchange=bus_name)
    await transport.open()
    inbox = await transport.consume(QUEUE, 400)
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        publishing = [
            asyncio.create_task(transport.publish([an_envelope(number, framed=False)], expected=[True]))
            for number in range(300)  # more than fit into a client's buffers
        ]
        async with asyncio.timeout(DEADLINE):
            while "lost the connection" not in caplog.text:
                await asyncio.sleep(0.05)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(*publishing)
        heard: set[int] = set()
        while len(heard) < 300:
            delivery = await in_time(inbox.get(), DEADLINE)
            delivery.done()
            heard.add(number_in(delivery))
    await transport.close()


async def test_closing_while_there_is_no_broker_is_prompt(
    broker: RabbitMQ, connect: Callable[[], RabbitTransport]
) -> None:
    transport = connect()
    await transport.open()
    await transport.consume(QUEUE, 10)
    await asyncio.to_thread(broker.kill)
    publishing = asyncio.create_task(transport.publish([an_envelope(1)], expected=[True]))
    async with asyncio.timeout(10):
        await transport.close()
        with pytest.raises(Exception, match="closed"):
            await publishing


SECONDS = 20.0


@pytest.fixture(scope="module")
def berth(rabbitmq: RabbitMQ, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with a_module_database(postgres) as database:
        environment = {
            "BERTH_AMQP_URL": url_of(rabbitmq),
            "BERTH_DATABASE_URL": database,
            "BERTH_EXCHANGE": f"t{secrets.token_hex(4)}",
            "BERTH_ZONES": "north,south",
            "BERTH_CELLS": "c1",
        }
        flags = ("--hosts", "4", "--build-time", "constant:0.1")
        with Up(tmp_path_factory.mktemp("bad-input"), environment, *flags) as berth:
            yield berth
            assert "starting it again" not in berth.log, "a worker ended over what was published"


class Stranger:
    def __init__(self, berth: Up) -> None:
        self.exchange = berth.environment["BERTH_EXCHANGE"]
        self._connection = pika.BlockingConnection(pika.URLParameters(berth.environment["BERTH_AMQP_URL"]))
        self._channel: BlockingChannel = self._connection.channel()
        self._channel.confirm_delivery()
        self._mine: str = self._channel.queue_declare("", exclusive=True).method.queue
        for key in ("build.ended.*", "build.unplaceable"):
            self._channel.queue_bind(self._mine, self.exchange, key)

    def close(self) -> None:
        self._connection.close()

    def says(self, body: bytes, kind: str = "") -> str:
        id_ = str(uuid.uuid4())
        properties = pika.BasicProperties(message_id=id_, type=kind or None)
        self._channel.basic_publish(self.exchange, "build.requested", body, properties, mandatory=True)
        return id_

    def hears_of(self, request: str) -> tuple[str, dict[str, Any]]:
        """The topic and the message of the request's end."""
        heard = self._channel.consume(self._mine, auto_ack=True, inactivity_timeout=SECONDS)
        for method, _, body in heard:
            assert body is not None, f"nothing was heard of {request}"
            said = json.loads(body)
            if said["request"] == request:
                self._channel.cancel()
                return method.routing_key, said
        raise AssertionError("the queue was taken away")


@pytest.fixture
def stranger(berth: Up) -> Iterator[Stranger]:
    stranger = Stranger(berth)
    yield stranger
    stranger.close()


def request_in_json(**changes: object) -> dict[str, Any]:
    build = str(uuid.uuid4())
    flavor = {"name": "small", "vcpus": 1, "memory_mb": 512, "disk_gb": 1}
    request = {"request": build, "instances": [build], "flavor": flavor, **changes}
    return {name: value for name, value in request.items() if value is not None}


def flavored(**changes: object) -> dict[str, Any]:
    return request_in_json(flavor={"name": "small", "vcpus": 1, "memory_mb": 512, "disk_gb": 1, **changes})


def as_bytes(message: object) -> bytes:
    return json.dumps(message).encode()


def dead_letter(berth: Up, id_: str) -> dict[str, Any]:
    """The letter of this id, once it is among the dead."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        listed = berth.berth("dead", "list", "--json")
        assert listed.returncode == 0, listed.stderr
        for line in listed.stdout.splitlines():
            letter: dict[str, Any] = json.loads(line)
            if letter["id"] == id_:
                return letter
    raise AssertionError(f"{id_} is not among the dead letters:\n{listed.stdout[:2000]}")


HUGE = request_in_json(metadata={"notes": "x" * 2 * 1024 * 1024})


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        (b'{"request": "', "", "BuildRequested: not JSON: Input data was truncated"),
        (b"\x80\x81\x82", "", "BuildRequested: not JSON"),
        (
            as_bytes(request_in_json()),
            "BuildWished",
            "type: 'BuildWished' is unknown on this topic, which carries BuildRequested",
        ),
        (as_bytes(request_in_json(flavor=None)), "", "missing required field `flavor`"),
        (as_bytes(flavored(vcpus=-1)), "", "Expected `int` >= 0 - at `$.flavor.vcpus`"),
        (as_bytes(HUGE), "", "the bus carries at most 1048576"),
    ],
)
def test_unreadable_requests_are_dead_letters_with_a_reason(
    berth: Up, stranger: Stranger, body: bytes, kind: str, sentence: str
) -> None:
    letter = dead_letter(berth, stranger.says(body, kind))
    assert sentence in letter["reason"]
    assert letter["queue"] == "scheduler:build.requested"
    assert letter["body"].encode(errors="replace")[:100] == body.decode(errors="replace").encode()[:100]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (request_in_json(cell="atlantis"), ("cell", "atlantis")),
        (request_in_json(zone="utopia"), ("zone", "utopia")),
    ],
    ids=["cell", "zone"],
)
def test_the_refusal_names_an_unknown_host_or_zone(
    stranger: Stranger, request_: dict[str, Any], words: tuple[str, ...]
) -> None:
    stranger.says(as_bytes(request_))
    topic, said = stranger.hears_of(request_["request"])
    assert topic == "build.unplaceable"
    for word in words:
        assert word in said["reason"]


def test_after_all_that_a_good_request_is_built(berth: Up, stranger: Stranger) -> None:
    for body in (b"{", b"[]", as_bytes(flavored(vcpus=-1))):
        stranger.says(body)
    request = request_in_json(zone="south", cell="c1")
    stranger.says(as_bytes(request))
    topic, said = stranger.hears_of(request["request"])
    assert (topic, said["status"], said["cell"]) == ("build.ended.c1", "active", "c1")


def test_dead_letters_can_be_listed_shown_replayed_and_dropped(berth: Up, stranger: Stranger) -> None:
    id_ = stranger.says(as_bytes(flavored(disk_gb="much")))
    letter = dead_letter(berth, id_)

    listed = berth.berth("dead", "list")
    assert listed.returncode == 0
    assert re.search(rf"^{id_[:8]}.* scheduler:build\.requested ", listed.stdout, re.MULTILINE)

    shown = berth.berth("dead", "show", id_[:13])
    assert shown.returncode == 0
    assert "at `$.flavor.disk_gb`" in shown.stdout
    assert '"disk_gb": "much"' in shown.stdout

    replayed = berth.berth("dead", "replay", id_)
    assert (replayed.returncode, replayed.stdout.strip()) == (0, "1 replayed")
    again = dead_letter(berth, id_)  # it is no better than it was
    assert again["first died"] == letter["first died"]

    dropped = berth.berth("dead", "drop", id_)
    assert (dropped.returncode, dropped.stdout.strip()) == (0, "1 dropped")
    assert id_ not in berth.berth("dead", "list", "--json").stdout

    unknown = berth.berth("dead", "drop", id_)
    assert unknown.returncode == 1
    assert f"no dead letter's id begins with '{id_}'" in unknown.stdout
