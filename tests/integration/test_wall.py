"""Cells on a real RabbitMQ with only their own permissions: they live, and what the broker cannot refuse does
no harm (what it refuses: test_outsiders)."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from berth import wiring, worker_roles
from berth.settings import Settings
from bus import topics
from bus.codec import encode
from bus.delivery.runner import Bus
from bus.messages import BuildDeleteRequested, BuildEnded, BuildRequested
from bus.queries import FindBuilds, FindWaiting
from bus.rabbit import RabbitTransport, permissions
from bus.requests import Flavor
from bus.resources import FindProviders
from bus.worker import On, Worker
from deploy.rabbitmq import find_rabbitmq
from deploy.servers import RabbitMQ, private_directory
from tests.support.ids import uid
from tests.support.servers import installed
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.slow]

FLOOD_BYTES = 256 * 1024
PASSWORDS = {"c1": "one", "c2": "two"}


@pytest.fixture(scope="module")
def broker() -> Iterator[RabbitMQ]:
    installed(find_rabbitmq)
    directory = private_directory("berth-wall-")
    with RabbitMQ(directory / "rabbitmq") as started:
        users = {
            cell: permissions.BrokerUser(password, permissions.of_cell(cell, wiring.tables_of_cell(cell)))
            for cell, password in PASSWORDS.items()
        }
        made = permissions.definitions(users, tuple(users), flood_bytes=FLOOD_BYTES)
        file = directory / "definitions.json"
        file.write_text(json.dumps(made))
        started.control("import_definitions", str(file))
        yield started
    shutil.rmtree(directory, ignore_errors=True)


def address(broker: RabbitMQ, user: str) -> str:
    return f"amqp://{user}:{PASSWORDS[user]}@127.0.0.1:{broker.port}/"


@dataclass
class Cloud:
    broker: RabbitMQ
    settings: Settings
    operator: Bus

    async def boot(self, number: int, cell: str = "c1") -> BuildEnded:
        ends = await self.operator.listen(topics.BUILD_ENDED.at(cell=cell, reply_to=f"b{number}"))
        flavor = Flavor(name="small", vcpus=1, memory_mb=64, disk_gb=1)
        await self.operator.publish(
            BuildRequested(
                request=uid(number), instances=(uid(number),), flavor=flavor, cell=cell, reply_to=f"b{number}"
            )
        )
        async with asyncio.timeout(60):
            end = await ends.get()
        await ends.stop()
        return end

    async def delete(self, number: int, cell: str = "c1") -> None:
        gone = await self.operator.listen(topics.BUILD_DELETED.at(cell=cell, reply_to=f"d{number}"))
        await self.operator.publish(BuildDeleteRequested(build=uid(number), cell=cell, reply_to=f"d{number}"))
        async with asyncio.timeout(60):
            await gone.get()
        await gone.stop()


@asynccontextmanager
async def a_cloud(broker: RabbitMQ, directory: Path) -> AsyncIterator[Cloud]:
    brokers = {name: address(broker, name) for name in ("c1", "c2")}
    settings = Settings().having(
        cells=("c1", "c2"), cell_amqp_urls=brokers, hosts=8, amqp_url=broker.url, state_dir=str(directory),
        fail=1.0, build_time="constant:0.01", heartbeat=1.0,
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        stopping = asyncio.Event()
        group = await stack.enter_async_context(asyncio.TaskGroup())
        stack.callback(stopping.set)
        for role in worker_roles.roles(settings):
            way = wiring.transport(settings, str(role), role.cell)
            group.create_task(wiring.serve([role], settings, way, stopping))
            if role.worker == "placement":
                await until(lambda: placement_is_there(broker))
        await everybody_is_there(await stack.enter_async_context(Bus(RabbitTransport(broker.url))))
        operator = await stack.enter_async_context(Bus(RabbitTransport(broker.url)))
        yield Cloud(broker, settings, operator)


async def everybody_is_there(owner: Bus) -> None:
    providers, waiting = owner.asker(topics.PROVIDERS), owner.asker(topics.WAITING, timeout=30.0)

    async def reported() -> bool:
        return len((await providers(FindProviders())).providers) >= 8

    await until(reported)
    await waiting(FindWaiting())
    for cell in ("c1", "c2"):
        await owner.asker(topics.FIND_BUILDS)(FindBuilds(cell=cell, builds=(uid(1),)))


def placement_is_there(broker: RabbitMQ) -> bool:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        try:
            connection.channel().queue_declare("ask:placement.claim.c2", passive=True)
        except ChannelClosedByBroker:
            return False
    return True


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wall")


async def test_a_cell_lives_with_its_permissions_alone(broker: RabbitMQ, directory: Path) -> None:
    async with a_cloud(broker, directory) as cloud:
        end = await cloud.boot(1)
        assert (end.status, len(end.attempts)) == ("active", 2)
        asked = cloud.operator.asker(topics.FIND_BUILDS)
        (found,) = (await asked(FindBuilds(cell="c1", builds=(uid(1),)))).builds
        assert found.host == end.host
        await cloud.delete(1)
        broker.restart()
        for number, cell in ((2, "c1"), (3, "c2")):
            end = await cloud.boot(number, cell)
            assert (end.status, len(end.attempts), end.cell) == ("active", 2, cell)
            await cloud.delete(number, cell)
        async with Bus(RabbitTransport(broker.url)) as owner:
            assert await owner.transport.dead_letters() == []
            free = owner.asker(topics.PROVIDERS)
            assert len((await free(FindProviders())).providers) == 8


REPLIES = "reply.c1.conductor-00000000.00000000"


async def letters_of(broker: RabbitMQ, queue: str, count: int) -> list[str]:
    found: list[str] = []
    async with Bus(RabbitTransport(broker.url)) as owner:

        async def dead() -> bool:
            letters = await owner.transport.dead_letters()
            found[:] = [letter.reason for letter in letters if letter.queue == queue]
            return len(found) >= count

        await until(dead)
        await owner.transport.remove_dead_letters(None)
    return found


def a_request(number: int) -> bytes:
    flavor = Flavor(name="small", vcpus=1, memory_mb=64, disk_gb=1)
    return encode(BuildRequested(request=uid(number), instances=(uid(number),), flavor=flavor, reply_to="no"))


def by_a_further_key(channel: BlockingChannel) -> None:
    said = pika.BasicProperties(headers={"CC": ["build.requested"]})
    channel.basic_publish("berth", "build.ended.c1", a_request(201), said)


def by_a_queue_that_forwards(channel: BlockingChannel) -> None:
    forwards = {
        "x-message-ttl": 0, "x-dead-letter-exchange": "berth", "x-dead-letter-routing-key": "build.requested"
    }  # fmt: skip
    channel.queue_declare(REPLIES, exclusive=True, arguments=forwards)
    channel.queue_bind(REPLIES, "berth.queues", f"*.{REPLIES}")
    channel.basic_publish("berth.queues", f"0.{REPLIES}", a_request(202))


def by_a_queue_that_forwards_by_name(channel: BlockingChannel) -> None:
    forwards = {
        "x-message-ttl": 0,
        "x-dead-letter-exchange": "berth.queues",
        "x-dead-letter-routing-key": "0.scheduler:build.requested",
    }
    queue = REPLIES.replace("0", "1")
    channel.queue_declare(queue, exclusive=True, arguments=forwards)
    channel.queue_bind(queue, "berth.queues", f"*.{queue}")
    said = pika.BasicProperties(headers={"key": "build.requested"})
    channel.basic_publish("berth.queues", f"0.{queue}", a_request(203), said)


def by_an_exchange_of_its_own(channel: BlockingChannel) -> None:
    exchange = REPLIES.replace("0", "2")
    channel.exchange_declare(exchange, "topic", auto_delete=True)
    channel.exchange_bind("berth", exchange, "#")
    channel.basic_publish(exchange, "build.requested", a_request(205))


async def test_what_the_broker_lets_through_is_not_believed(broker: RabbitMQ, directory: Path) -> None:
    """Four ways in which RabbitMQ accepts a build request from a cell, whatever its permissions."""
    ways = [
        by_a_further_key,
        by_a_queue_that_forwards,
        by_a_queue_that_forwards_by_name,
        by_an_exchange_of_its_own,
    ]
    async with a_cloud(broker, directory / "believed") as cloud:
        none = await cloud.operator.listen(topics.BUILD_UNPLACEABLE.at(reply_to="no"))
        built = await cloud.operator.listen(topics.BUILD_ENDED.at(reply_to="no"))
        with pika.BlockingConnection(pika.URLParameters(address(broker, "c1"))) as connection:
            for way in ways:
                way(connection.channel())
            reasons = await letters_of(broker, "scheduler:build.requested", len(ways))
        assert len(reasons) == len(ways)
        assert sum("build.ended.c1" in reason for reason in reasons) == 1
        assert sum("forwards what it likes" in reason for reason in reasons) == 2
        assert sum("it was published to" in reason for reason in reasons) == 1
        end = await cloud.boot(204)
        assert end.status == "active"
        for ear in (none, built):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await ear.get()


async def test_a_flood_waits_in_a_queue_of_its_own_which_is_bounded(
    broker: RabbitMQ, directory: Path, flood: int
) -> None:
    said = pika.BasicProperties(delivery_mode=2)
    body = b" " * 1000
    with pika.BlockingConnection(pika.URLParameters(address(broker, "c1"))) as connection:
        channel = connection.channel()
        async with a_cloud(broker, directory / "flood") as cloud:
            await cloud.boot(300, "c2")
        for _ in range(flood):
            channel.basic_publish("berth", "inventory.reported.c1", body, said)
        channel.close()
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        counting = connection.channel()

        def bounded() -> bool:
            """The broker takes what is too much out again, a moment after it came."""
            found = counting.queue_declare("placement:inventory.reported.c1", passive=True)
            kept = int(found.method.message_count)
            return kept < flood and 0 < kept * len(body) <= 2 * FLOOD_BYTES

        await until(bounded)
    async with a_cloud(broker, directory / "flood") as cloud:
        for number in range(301, 304):
            assert (await cloud.boot(number, "c2")).status == "active"
        async with Bus(RabbitTransport(broker.url)) as owner:
            await until(lambda: nothing_waits(broker))
            await owner.transport.remove_dead_letters(None)


def nothing_waits(broker: RabbitMQ) -> bool:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        found = connection.channel().queue_declare("placement:inventory.reported.c1", passive=True)
        return not found.method.message_count


@pytest.fixture(params=[5_000, pytest.param(100_000, marks=pytest.mark.soak)])
def flood(request: pytest.FixtureRequest) -> int:
    return int(request.param)


async def test_a_cell_says_nothing_to_a_scheduler_but_how_its_hosts_are(
    broker: RabbitMQ, directory: Path
) -> None:
    """Counted by the broker: what its users published, in the queues a scheduler reads."""
    heard: set[tuple[str, str]] = set()
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()

        def beaten() -> bool:
            """Return whether each agent has reported the state of its hosts."""
            while True:
                method, said, _ = channel.basic_get("counts", auto_ack=True)
                if method is None or said is None:
                    return heard >= {("c1", "host.reported.c1"), ("c2", "host.reported.c2")}
                heard.add((said.user_id or "", method.routing_key))

        async with a_cloud(broker, directory / "counted") as cloud:
            keys = {row.address.key for row in scheduler_hears()} | {f"ask.{q}" for q in scheduler_answers()}
            channel.queue_declare("counts", exclusive=True)
            for key in keys:
                channel.queue_bind("counts", "berth", key)
            for number, cell in ((401, "c1"), (402, "c2")):
                await cloud.boot(number, cell)
                await cloud.delete(number, cell)
            await until(beaten)
        beaten()
    assert {key for user, key in heard if user == "c1"} == {"host.reported.c1", "host.failed.c1"}
    assert {key for user, key in heard if user == "c2"} == {"host.reported.c2", "host.failed.c2"}
    assert ("guest", "build.requested") in heard


def scheduler_hears() -> list[On]:
    return [row for worker in of_the_scheduler() for row in worker.consumes]


def scheduler_answers() -> list[str]:
    return [row.key for worker in of_the_scheduler() for row in worker.answers]


def of_the_scheduler() -> list[Worker]:
    return [
        worker for worker in wiring.all_workers_without_a_bus() if worker.name in ("scheduler", "replica")
    ]
