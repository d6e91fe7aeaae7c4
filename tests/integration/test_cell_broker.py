"""A cell with a separate RabbitMQ and its permissions: the ferry and the broker are killed under load.

All its builds end once, no allocation is lost or left over, and the other cell is not affected.
"""

import asyncio
import json
import math
import os
import shutil
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from berth import wiring, worker_roles
from berth.configuration import EFFECTIVE_ENV, SUPERVISED_ENV
from berth.services import Supervisor
from berth.settings import Settings
from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Bus, Listener
from bus.ferry.crossings import Way
from bus.messages import BuildDeleteRequested, BuildEnded, BuildRequested
from bus.protocol import encode
from bus.queries import FindBuilds, FindWaiting
from bus.rabbit import RabbitTransport, permissions
from bus.requests import Flavor
from bus.resources import FindProviders
from bus.worker import On, Worker
from deploy.rabbitmq import find_rabbitmq
from deploy.servers import RabbitMQ, private_directory
from tests.support.berth_processes import running, settled
from tests.support.ids import uid
from tests.support.servers import ExternalServer, installed
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.slow]

PASSWORD = "secret"
HOSTS = 16
AWAY = 30.0
FLAVOR = Flavor(name="small", vcpus=1, memory_mb=64, disk_gb=1)


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    installed(find_rabbitmq)
    directory = private_directory("berth-own-")
    with RabbitMQ(directory / "rabbitmq") as started:
        yield started
    shutil.rmtree(directory, ignore_errors=True)


def address(broker: RabbitMQ, user: str) -> str:
    return f"amqp://{user}:{PASSWORD}@127.0.0.1:{broker.port}/"


def let_in(broker: RabbitMQ, exchange: str, **users: permissions.Permissions) -> None:
    known = {f"{exchange}-{name}": permissions.BrokerUser(PASSWORD, may) for name, may in users.items()}
    file = broker.directory / f"{exchange}.json"
    file.write_text(json.dumps(permissions.definitions(known, exchange=exchange)))
    broker.control("import_definitions", str(file))


def with_users(middle: RabbitMQ, own: RabbitMQ, exchange: str, directory: Path) -> Settings:
    crossing = wiring.crossings_of("c2")
    may = {cell: permissions.of_cell(cell, wiring.tables_of_cell(cell), exchange) for cell in ("c1", "c2")}
    let_in(middle, exchange, c1=may["c1"], ferry=permissions.of_ferry(crossing, exchange=exchange))
    let_in(
        own,
        exchange,
        c2=may["c2"],
        ferry=permissions.of_ferry(crossing, at_cell_broker=True, exchange=exchange),
    )
    return Settings().having(
        cells=("c1", "c2"), hosts=HOSTS, build_time="constant:0.01", fail=0.2, exchange=exchange,
        amqp_url=middle.url, queue_type="classic",
        cell_amqp_urls={"c1": address(middle, f"{exchange}-c1"), "c2": address(own, f"{exchange}-c2")},
        cell_ferry_urls={"c2": address(own, f"{exchange}-ferry")}, state_dir=str(directory),
    )  # fmt: skip


class FerryProcess:
    def __init__(self, settings: Settings, middle: str) -> None:
        self._environment = {
            **os.environ,
            EFFECTIVE_ENV: msgspec.json.encode(settings.having(amqp_url=middle)).decode(),
            SUPERVISED_ENV: "1",  # it ends with us
        }
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *Supervisor.command([worker_roles.Role("ferry", "c2")]),
            env=self._environment,
            stdin=asyncio.subprocess.PIPE,
        )

    async def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(how)
        await self._process.wait()


@dataclass
class Boots:
    """A client that boots in several cells, again and again, and how that ends."""

    client: Bus
    cells: Sequence[str]
    every: float  # seconds from one boot in a cell to its next
    asked: dict[str, tuple[str, float]] = field(default_factory=dict)  # build: its cell, and when
    ended: dict[str, list[BuildEnded]] = field(default_factory=lambda: defaultdict(list))
    took: dict[str, float] = field(default_factory=dict)

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """While the block runs; then all have ended."""
        ends = await self.client.listen(topics.BUILD_ENDED.at(reply_to="load"))
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(self._handle(ends))
            booting = group.create_task(self._boot(stop))
            yield
            stop.set()
            await booting
            await until(lambda: len(self.ended) == len(self.asked), "all have ended", 120.0)
            listening.cancel()

    def count(self, cell: str) -> int:
        return sum(self.asked[build][0] == cell for build in self.ended)

    async def more_end(self, cell: str, count: int, seconds: float = 30.0) -> None:
        before = self.count(cell)
        await until(lambda: self.count(cell) >= before + count, f"{count} more builds of {cell} end", seconds)

    def seconds(self, cells: Sequence[str], since: float, to: float = math.inf) -> list[float]:
        asked = [build for build, (cell, at) in self.asked.items() if cell in cells and since <= at < to]
        return sorted(self.took[build] for build in asked)

    def all_ended_once_and_well(self) -> None:
        assert {end.status for said in self.ended.values() for end in said} == {"active"}
        assert all(end == said[0] for said in self.ended.values() for end in said)

    async def _boot(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            for cell in self.cells:
                build = uid(len(self.asked) + 1)
                self.asked[build] = cell, monotonic()
                await self.client.publish(
                    BuildRequested(
                        request=build,
                        instances=(build,),
                        flavor=FLAVOR,
                        cell=cell,
                        reply_to="load",
                        wait="10m",
                    )
                )
            await asyncio.sleep(self.every)

    async def _handle(self, ends: Listener[BuildEnded]) -> None:
        while True:
            end = await ends.get()
            self.took.setdefault(end.build, monotonic() - self.asked[end.build][1])
            self.ended[end.build].append(end)


@dataclass
class TwoCells:
    """All of it at work, and a client."""

    settings: Settings
    own: RabbitMQ
    ferry: FerryProcess
    client: Bus

    async def nothing_is_dead_or_waits(self) -> None:
        exchange = self.settings.bus.exchange
        async with Bus(RabbitTransport(self.own.url, exchange=exchange, quorum=False)) as own:
            for side, way in ((self.client.transport, Way.IN), (own.transport, Way.OUT)):
                assert isinstance(side, RabbitTransport)
                assert await side.dead_letters() == []
                for crossing in wiring.crossings_of("c2"):
                    if crossing.way is way:
                        await nothing_waits(side, crossing.queue.name)


async def nothing_waits(side: RabbitTransport, queue: str) -> None:
    async def is_empty() -> bool:
        return not await side.waiting(queue)

    await until(is_empty, f"nothing waits in {queue}")


async def is_there(broker: RabbitMQ, queue: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:

        async def found() -> bool:
            await asyncio.sleep(0.05)
            try:
                connection.channel().queue_declare(queue, passive=True)
            except ChannelClosedByBroker:
                return False
            return True

        await until(found, f"{queue} is there")


@asynccontextmanager
async def two_cells(middle: RabbitMQ, own: RabbitMQ, settings: Settings) -> AsyncIterator[TwoCells]:
    exchange = settings.bus.exchange
    ferry = FerryProcess(settings, address(middle, f"{exchange}-ferry"))
    there = {
        "placement": (middle, f"{exchange}:ask:placement.claim.c2"),
        "ferry": (own, f"{exchange}:ferry.c2:reply.-c2"),
    }
    async with AsyncExitStack() as stack:
        stopping = asyncio.Event()
        group = await stack.enter_async_context(asyncio.TaskGroup())
        stack.callback(stopping.set)
        for role in worker_roles.roles(settings):
            if role.worker == "ferry":
                await ferry.start()
                stack.push_async_callback(ferry.end)
            else:
                group.create_task(wiring.serve([role], settings, wiring.way_of([role], settings), stopping))
            if role.worker in there:
                await is_there(*there[role.worker])
        client = await stack.enter_async_context(Bus(wiring.transport(settings, "client")))
        cells = TwoCells(settings, own, ferry, client)
        providers, waiting = client.asker(topics.PROVIDERS), client.asker(topics.WAITING, timeout=30.0)

        async def all_reported() -> bool:
            return len((await providers(FindProviders())).providers) >= HOSTS

        await until(all_reported)
        await waiting(FindWaiting())
        for cell in ("c1", "c2"):
            await client.asker(topics.FIND_BUILDS)(FindBuilds(cell=cell, builds=(uid(1),)))
        yield cells


@pytest.mark.soak  # always, on one broker: contract/test_ferry
async def test_a_cell_whose_broker_and_ferry_are_killed_loses_nothing(
    rabbitmq: RabbitMQ | ExternalServer, own: RabbitMQ, bus_name: str, tmp_path: Path
) -> None:
    if isinstance(rabbitmq, ExternalServer):
        pytest.skip("the test makes users on its server, and an external one was given")
    rabbitmq.start()
    settings = with_users(rabbitmq, own, bus_name, tmp_path)
    async with two_cells(rabbitmq, own, settings) as cells:
        boots = Boots(cells.client, ("c1", "c2"), 0.1)
        async with boots.going_on():
            for cell in boots.cells:
                await boots.more_end(cell, 5)

            await cells.ferry.end(signal.SIGKILL)
            await boots.more_end("c1", 5)
            await cells.ferry.start()
            await boots.more_end("c2", 10)

            await asyncio.to_thread(own.kill)
            ended, gone = boots.count("c2"), monotonic()
            await boots.more_end("c1", 15)
            assert boots.count("c2") <= ended + 5  # only what was on its way came through
            back = monotonic()
            await asyncio.to_thread(own.start)
            await boots.more_end("c2", 20)
        await cells.nothing_is_dead_or_waits()
    boots.all_ended_once_and_well()
    assert boots.seconds(["c1"], gone, back)[-1] < 2.0
    found = await settled(settings, builds=len(boots.asked))
    assert found.breaches == []
    assert found.builds == {"active": len(boots.asked)}


def part(seconds: Sequence[float], percent: int) -> float:
    return seconds[len(seconds) * percent // 100]


@pytest.mark.soak
async def test_a_cells_broker_is_away_for_half_a_minute_under_load(
    amqp_url: str, database_url: str, own: RabbitMQ, bus_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings().having(
        amqp_url=amqp_url, database_url=database_url, exchange=bus_name, cells=("c1", "c2", "c3", "c4"),
        cell_ferry_urls={"c4": own.url}, hosts=400, build_time="exponential:0.1", fail=0.1,
    )  # fmt: skip
    async with running(settings) as berth:
        boots = Boots(berth.bus, settings.cell_names, 0.05)
        async with boots.going_on():
            for cell in boots.cells:
                await boots.more_end(cell, 100)
            begun = monotonic()
            await asyncio.sleep(AWAY)
            gone = monotonic()
            await asyncio.to_thread(own.kill)
            await asyncio.sleep(AWAY)
            ended = boots.count("c4")
            back = monotonic()
            await asyncio.to_thread(own.start)
            started = monotonic()
            await boots.more_end("c4", int(AWAY / 0.05), 60.0)
            caught_up = monotonic()
            await asyncio.sleep(AWAY)
        windows = {
            "before": (begun, gone),
            "away": (gone, back),
            "back": (back, caught_up),
            "after": (caught_up, math.inf),
        }
        took = {name: boots.seconds(["c1", "c2", "c3"], *window) for name, window in windows.items()}
        with capsys.disabled():
            for name, seconds in took.items():
                middle, worst = (1000 * part(seconds, of) for of in (50, 99))
                print(f"\nc1 to c3, {name}: {len(seconds)} boots, p50 {middle:.0f} ms, p99 {worst:.0f} ms")
            print(
                f"c4: {ended} had ended when it came back; caught up {caught_up - started:.1f} s after that"
            )
        boots.all_ended_once_and_well()
        found = await settled(settings, 60.0, builds=len(boots.asked))
        assert found.breaches == []
        assert found.builds == {"active": len(boots.asked)}
        async with Bus(RabbitTransport(own.url, exchange=bus_name)) as theirs:
            assert await theirs.transport.dead_letters() == await berth.bus.transport.dead_letters() == []
    noise = max(part(took["before"], 99), part(took["after"], 99))
    assert part(took["away"], 99) < 2 * noise + 0.1


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


def address_of_user(broker: RabbitMQ, user: str) -> str:
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
    brokers = {name: address_of_user(broker, name) for name in ("c1", "c2")}
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


async def test_a_cell_works_with_its_own_permissions_only(broker: RabbitMQ, directory: Path) -> None:
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

        await until(dead, picture=lambda: found)
        await owner.transport.remove_dead_letters(None)
    return found


def a_request(number: int) -> bytes:
    flavor = Flavor(name="small", vcpus=1, memory_mb=64, disk_gb=1)
    return encode(BuildRequested(request=uid(number), instances=(uid(number),), flavor=flavor, reply_to="no"))


def publish(
    channel: BlockingChannel,
    exchange: str,
    key: str,
    body: bytes,
    properties: pika.BasicProperties | None = None,
) -> None:
    """Publish a message, and raise unless the broker has put it into a queue."""
    channel.confirm_delivery()
    channel.basic_publish(exchange, key, body, properties, mandatory=True)


def by_a_further_key(channel: BlockingChannel) -> None:
    said = pika.BasicProperties(headers={"CC": ["build.requested"]})
    publish(channel, "berth", "build.ended.c1", a_request(201), said)


def by_a_queue_that_forwards(channel: BlockingChannel) -> None:
    forwards = {
        "x-message-ttl": 0, "x-dead-letter-exchange": "berth", "x-dead-letter-routing-key": "build.requested"
    }  # fmt: skip
    channel.queue_declare(REPLIES, exclusive=True, arguments=forwards)
    channel.queue_bind(REPLIES, "berth.queues", f"*.{REPLIES}")
    publish(channel, "berth.queues", f"0.{REPLIES}", a_request(202))


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
    publish(channel, "berth.queues", f"0.{queue}", a_request(203), said)


def by_an_exchange_of_its_own(channel: BlockingChannel) -> None:
    exchange = REPLIES.replace("0", "2")
    channel.exchange_declare(exchange, "topic", auto_delete=True)
    channel.exchange_bind("berth", exchange, "#")
    publish(channel, exchange, "build.requested", a_request(205))


async def test_forged_build_requests_are_refused(broker: RabbitMQ, directory: Path) -> None:
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
        with pika.BlockingConnection(pika.URLParameters(address_of_user(broker, "c1"))) as connection:
            for way in ways:
                way(connection.channel())
            reasons = await letters_of(broker, "scheduler:build.requested", len(ways))
        assert len(reasons) == len(ways)
        assert sum("build.ended.c1" in reason for reason in reasons) == 1
        assert sum("is not one of berth's" in reason for reason in reasons) == 2
        assert sum("it was published to" in reason for reason in reasons) == 1
        end = await cloud.boot(204)
        assert end.status == "active"
        for ear in (none, built):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await ear.get()


async def test_a_flood_of_messages_fills_only_its_bounded_queue(
    broker: RabbitMQ, directory: Path, flood: int
) -> None:
    said = pika.BasicProperties(delivery_mode=2)
    body = b" " * 1000
    with pika.BlockingConnection(pika.URLParameters(address_of_user(broker, "c1"))) as connection:
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
            await until(lambda: placement_queue_is_empty(broker))
            await owner.transport.remove_dead_letters(None)


def placement_queue_is_empty(broker: RabbitMQ) -> bool:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        found = connection.channel().queue_declare("placement:inventory.reported.c1", passive=True)
        return not found.method.message_count


@pytest.fixture(params=[5_000, pytest.param(100_000, marks=pytest.mark.soak)])
def flood(request: pytest.FixtureRequest) -> int:
    return int(request.param)


async def test_a_cell_publishes_only_host_states_to_schedulers(broker: RabbitMQ, directory: Path) -> None:
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
