"""A cell with a separate RabbitMQ: its ferry and its broker are killed under load.

All its builds end once, no allocation is lost or left over, and the other cell is not affected.
"""

import asyncio
import json
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from berth import broker_permissions, composition
from berth.ferry.crossings import Way
from berth.kit.broker_permissions import BrokerUser, Permissions, definitions
from berth.settings import Settings
from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Bus, Listener
from bus.messages import BuildEnded, BuildRequested
from bus.parts import RequestParts
from bus.rabbit import RabbitTransport
from bus.requests import Flavor
from deploy.rabbitmq import find_rabbitmq
from deploy.servers import RabbitMQ, private_directory
from features.waiting.messages import WaitPart
from tests.support.berth_processes import running, settled
from tests.support.ids import uid
from tests.support.servers import ExternalServer, installed
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.slow]

PASSWORD = "secret"
FLAVOR = Flavor(name="small", vcpus=1, memory_mb=64, disk_gb=1)


@pytest.fixture
def own() -> Iterator[RabbitMQ]:
    installed(find_rabbitmq)
    directory = private_directory("berth-own-")
    with RabbitMQ(directory / "rabbitmq") as started:
        yield started
    shutil.rmtree(directory, ignore_errors=True)


def address(broker: RabbitMQ, user: str) -> str:
    return f"amqp://{user}:{PASSWORD}@127.0.0.1:{broker.port}/"


def let_in(broker: RabbitMQ, exchange: str, **users: Permissions) -> None:
    known = {f"{exchange}-{name}": BrokerUser(PASSWORD, may) for name, may in users.items()}
    file = broker.directory / f"{exchange}.json"
    file.write_text(json.dumps(definitions(known)))
    broker.control("import_definitions", str(file))


def with_users(middle: RabbitMQ, own: RabbitMQ, exchange: str, database: str) -> Settings:
    crossing = composition.crossings_of("c2")
    may = {
        cell: broker_permissions.of_cell(cell, composition.tables_of_cell(cell), exchange)
        for cell in ("c1", "c2")
    }
    let_in(middle, exchange, c1=may["c1"], ferry=broker_permissions.of_ferry(crossing, exchange=exchange))
    let_in(
        own,
        exchange,
        c2=may["c2"],
        ferry=broker_permissions.of_ferry(crossing, at_cell_broker=True, exchange=exchange),
    )
    return Settings().having(
        cells=("c1", "c2"),
        simulator={"hosts": 16, "build_time": "constant:0.01", "fail": 0.2},
        exchange=exchange,
        amqp_url=middle.url,
        database_url=database,
        cell_amqp_urls={"c1": address(middle, f"{exchange}-c1"), "c2": address(own, f"{exchange}-c2")},
        cell_ferry_urls={"c2": address(own, f"{exchange}-ferry")},
    )


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

    def seconds(self, cell: str, since: float, to: float) -> list[float]:
        asked = [build for build, (its, at) in self.asked.items() if its == cell and since <= at < to]
        return sorted(self.took[build] for build in asked)

    def all_ended_once_and_well(self) -> None:
        assert {end.status for reply in self.ended.values() for end in reply} == {"active"}
        assert all(end == reply[0] for reply in self.ended.values() for end in reply)

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
                        parts=RequestParts(WaitPart(wait="10m")),
                    )
                )
            await asyncio.sleep(self.every)

    async def _handle(self, ends: Listener[BuildEnded]) -> None:
        while True:
            end = await ends.get()
            self.took.setdefault(end.build, monotonic() - self.asked[end.build][1])
            self.ended[end.build].append(end)


async def nothing_is_dead_or_waits(settings: Settings, middle: RabbitMQ, own: RabbitMQ) -> None:
    for broker, way in ((middle, Way.IN), (own, Way.OUT)):
        transport = RabbitTransport(broker.url, exchange=settings.bus.exchange)
        async with Bus(transport):
            assert await transport.dead_letters() == []
            for crossing in composition.crossings_of("c2"):
                if crossing.way is way:
                    assert await transport.waiting(crossing.queue.name) == 0


@pytest.mark.soak  # always, on one broker: contract/test_ferry
async def test_a_cell_whose_broker_and_ferry_are_killed_loses_nothing(
    rabbitmq: RabbitMQ | ExternalServer, own: RabbitMQ, bus_name: str, database_url: str
) -> None:
    if isinstance(rabbitmq, ExternalServer):
        pytest.skip("the test makes users on its server, and an external one was given")
    rabbitmq.start()
    settings = with_users(rabbitmq, own, bus_name, database_url)
    async with running(settings) as berth:
        boots = Boots(berth.bus, ("c1", "c2"), 0.1)
        async with boots.going_on():
            for cell in boots.cells:
                await boots.more_end(cell, 5)

            await berth.kill("ferry.c2")
            await boots.more_end("c1", 5)
            await boots.more_end("c2", 10)

            await asyncio.to_thread(own.kill)
            ended, gone = boots.count("c2"), monotonic()
            await boots.more_end("c1", 15)
            assert boots.count("c2") <= ended + 5  # only what was on its way came through
            back = monotonic()
            await asyncio.to_thread(own.start)
            await boots.more_end("c2", 20)
        boots.all_ended_once_and_well()
        assert boots.seconds("c1", gone, back)[-1] < 2.0
        found = await settled(settings, builds=len(boots.asked))
        assert found.breaches == []
        assert found.builds == {"active": len(boots.asked)}
        await nothing_is_dead_or_waits(settings, rabbitmq, own)
