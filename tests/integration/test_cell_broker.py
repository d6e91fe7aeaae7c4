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
from pika.exceptions import ChannelClosedByBroker

from berth import wiring, worker_roles
from berth.configuration import EFFECTIVE_ENV, SUPERVISED_ENV
from berth.services import Supervisor
from berth.settings import Settings
from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Bus, Listener
from bus.ferry.crossings import Way
from bus.messages import BuildEnded, BuildRequested
from bus.queries import FindBuilds, FindWaiting
from bus.rabbit import RabbitTransport, permissions
from bus.requests import Flavor
from bus.resources import FindProviders
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
    let_in(own, exchange, c2=may["c2"], ferry=permissions.of_ferry(crossing, own=True, exchange=exchange))
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
            hearing = group.create_task(self._handle(ends))
            booting = group.create_task(self._boot(stop))
            yield
            stop.set()
            await booting
            await until(lambda: len(self.ended) == len(self.asked), "all have ended", 120.0)
            hearing.cancel()

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
async def test_a_cell_whose_broker_and_ferry_are_killed_loses_nothing_and_disturbs_nobody(
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
