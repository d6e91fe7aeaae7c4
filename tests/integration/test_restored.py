"""A berth is backed up during builds and restored into empty services, as docs/running.md describes.

`pg_dump`, `pg_restore`, an empty broker, agents that keep unknown guests; then clients repeat their
requests, and `berth audit check --agents` lists the differences of agents.
"""

import asyncio
import random
import shutil
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy.engine import make_url

from berth import simulated_agents
from berth.commands.run import migrate_all
from berth.loadtest import Load, LoadPlan
from berth.operations.audit import audit
from berth.operations.cell_records import builds_by_cell
from berth.operations.guest_differences import GuestComparison, compare_guests
from berth.settings import Settings
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.messages import BuildDeleteRequested, BuildEnded, BuildRequested
from bus.requests import Flavor
from deploy.servers import Postgres, RabbitMQ, find_postgres, private_directory
from tests.support.berth_processes import LAYOUTS, Running, in_one_process, joined, running, settled
from tests.support.next_berth import next_version, workers_of
from tests.support.servers import a_database, crash, installed
from tests.support.waiting import in_time, until

pytestmark = [pytest.mark.services, pytest.mark.slow]

AGENT = "c1-agent1"
SMALL = Flavor(name="small", vcpus=1, memory_mb=512, disk_gb=1)


class Client:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.ends: dict[str, set[tuple[str, str]]] = defaultdict(set)  # of this berth: status and host

    async def ask(self, bus: Bus, builds: Iterable[str]) -> None:
        requests = [
            BuildRequested(request=build, instances=(build,), flavor=SMALL, reply_to="client")
            for build in builds
        ]
        self.asked += [request.request for request in requests if request.request not in self.asked]
        await bus.publish(*requests)

    async def handle(self, bus: Bus) -> None:
        ended = await bus.listen(topics.BUILD_ENDED.at(reply_to="client"))
        while True:
            message: BuildEnded = await ended.get()
            self.ends[message.build].add((message.status, message.host))

    def new(self, count: int) -> list[str]:
        return [Clock().uuid() for _ in range(count)]


@pytest.fixture
async def fresh_database(postgres: Postgres) -> AsyncIterator[str]:
    async with a_database(postgres) as url:
        yield url


@pytest.fixture
def before(servers: Settings, tmp_path: Path) -> Settings:
    return servers.having(
        simulator={"hosts": 10, "fail": 0.1, "build_time": "exponential:0.2"},
        build_timeout=20.0,
        heartbeat=2.0,
        state_dir=str(tmp_path),
    )


async def run(program: str, *arguments: str) -> None:
    """One of PostgreSQL's own."""
    path = find_postgres().postgres.with_name(program)
    command = [str(path), *arguments]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def for_postgres(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


async def delete(bus: Bus, builds: Iterable[str]) -> None:
    listener = await bus.listen(topics.BUILD_DELETED.at(reply_to="client"))
    open_ = set(builds)
    await bus.publish(*(BuildDeleteRequested(build=one, cell="c1", reply_to="client") for one in open_))
    while open_:
        open_.discard((await in_time(listener.get())).build)
    await listener.stop()


async def test_a_backup_of_a_berth_at_work_is_restored_and_every_build_ends_once_or_is_named(
    before: Settings, fresh_database: str, bus_name: str, tmp_path: Path
) -> None:
    client, dump = Client(), str(tmp_path / "berth.dump")
    async with in_one_process(before) as bus, asyncio.TaskGroup() as group:
        listening = group.create_task(client.handle(bus))
        old, under_way, later = client.new(12), client.new(40), client.new(10)
        await client.ask(bus, old)
        await until(lambda: len(client.ends) == len(old))
        await client.ask(bus, under_way)
        await until(lambda: len(client.ends) > len(old))
        await run("pg_dump", "--format=custom", f"--file={dump}", for_postgres(before.database.url))
        await client.ask(bus, later)
        await delete(bus, old[:3])
        await until(lambda: len(client.ends) == len(client.asked))
        listening.cancel()

    after = before.having(database_url=fresh_database, exchange=f"{bus_name}-new", keep_unknown_guests=True)
    simulated_agents.guest_file(before, AGENT).rename(
        simulated_agents.guest_file(after, AGENT)
    )  # the same hosts go on
    await run("pg_restore", "--no-owner", f"--dbname={for_postgres(fresh_database)}", dump)

    client.ends.clear()
    async with in_one_process(after) as bus, asyncio.TaskGroup() as group:
        listening = group.create_task(client.handle(bus))
        await until(lambda: nobody_is_built(after), "what was under way has come to its end")
        compared = await compare_guests(after)
        gone, strangers = by_kind(map(str, compared.differences))
        assert gone == set(old[:3])
        assert {*later} & guests_in(compared) <= strangers <= {*under_way, *later}
        await delete(bus, gone)
        known = [one for one in client.asked if one not in {*strangers, *gone}]
        await client.ask(bus, known)  # everything, by the same names
        await until(lambda: client.ends.keys() >= {*known}, picture=lambda: client.ends)
        listening.cancel()

    plain = after.having(keep_unknown_guests=False)
    async with in_one_process(plain) as bus, asyncio.TaskGroup() as group:
        listening = group.create_task(client.handle(bus))

        async def are_destroyed() -> bool:
            compared = await compare_guests(plain)
            return not compared.silent and not strangers & guests_in(compared)

        await until(are_destroyed, "they are destroyed")
        await client.ask(bus, strangers)
        await until(lambda: client.ends.keys() >= {*known, *strangers}, picture=lambda: client.ends)
        assert all(len(ends) == 1 for ends in client.ends.values()), client.ends
        found = await settled(plain, builds=len(client.asked))
        assert found.breaches == []

        async def agrees() -> bool:
            await asyncio.sleep(0.2)
            return agreed(await compare_guests(plain))

        await until(agrees, "agents have what cells know, and nothing else")
        assert await bus.transport.dead_letters(10) == []
        listening.cancel()


async def nobody_is_built(settings: Settings) -> bool:
    await asyncio.sleep(0.2)
    found = await audit(settings)
    return not found.builds.keys() & {"building", "swapping"}


def guests_in(compared: GuestComparison) -> set[str]:
    return {guest.build for guests in compared.books.values() for guest in guests}


def agreed(found: GuestComparison) -> bool:
    return not found.differences and not found.silent


def by_kind(breaches: Iterable[str]) -> tuple[set[str], set[str]]:
    kinds: dict[bool, set[str]] = {True: set(), False: set()}
    for sentence in breaches:
        kinds["has no guest" in sentence].add(sentence.partition(":")[0])
    return kinds[True], kinds[False]


CENTRAL = [("placement", ""), ("scheduler", "")]


async def test_two_versions_share_the_work_until_the_workers_of_one_are_killed(
    amqp_url: str, database_url: str, bus_name: str, tmp_path: Path
) -> None:
    values: dict[str, Any] = {
        "amqp_url": amqp_url,
        "database_url": database_url,
        "exchange": bus_name,
        "cells": ["c1", "c2"],
        "simulator": {"hosts": 8, "fail": 0.2, "build_time": "exponential:0.1"},
        "state_dir": str(tmp_path),
    }
    settings = Settings().having(**{**values, "cells": ("c1", "c2")})
    await migrate_all(settings, Console(quiet=True))
    this_version = [*CENTRAL, ("conductor", "c1"), ("conductor", "c2"), ("compute", "c2")]
    next_one = [*CENTRAL, ("conductor", "c1"), ("compute", "c1")]
    log = tmp_path / "next.log"
    tree = await asyncio.to_thread(next_version, tmp_path / "next")
    with workers_of(tree, next_one, values, log) as process:  # they migrate the databases further
        async with in_one_process(settings, this_version) as bus:
            assert (await booted(bus, 60)).keys() <= {"active", "error"}
            cells = await cells_used(settings)
            assert min(cells["c1"], cells["c2"]) > 0, cells
            async with asyncio.TaskGroup() as group:
                load = Load(bus, LoadPlan(boots=40, patience=60.0))
                loading = group.create_task(load.run())
                await until(lambda: load.ended > 5)
                process.send_signal(signal.SIGKILL)
                await until(lambda: process.poll() is not None)
                async with joined(settings, [("compute", "c1")]):
                    await until(loading.done, picture=lambda: load.boots)
                    assert loading.result().statuses.keys() <= {"active", "error"}
                    found = await settled(settings, builds=100)
                    assert found.breaches == []
                    assert found.builds.keys() <= {"active", "error"}
                    assert sum(found.builds.values()) == 100
                    # this version's agent reads the guests that the next version's agent stored
                    assert agreed(await compare_guests(settings))
                    assert await bus.transport.dead_letters(10) == []
    assert "Traceback" not in log.read_text()


async def booted(bus: Bus, boots: int) -> Counter[str]:
    return (await Load(bus, LoadPlan(boots=boots, patience=60.0)).run()).statuses


async def cells_used(settings: Settings) -> Counter[str]:
    known = await builds_by_cell(settings, settings.cell_names)
    return Counter(build.cell for build in known.builds.values())


DEADLINE = 180.0
BOOTS = 5  # of each host
SECONDS = 5.0

Trouble = Callable[[Running], Awaitable[None]]


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    installed(find_postgres)
    directory = private_directory("berth-crashes-")
    with Postgres(directory / "postgres") as server:
        yield server
    shutil.rmtree(directory, ignore_errors=True)


def plain_settings(amqp_url: str, database_url: str, bus_name: str) -> Settings:
    return Settings().having(
        amqp_url=amqp_url,
        database_url=database_url,
        exchange=bus_name,
        cells=("c1", "c2"),
        simulator={"hosts": 60, "fail": 0.1, "build_time": "exponential:0.3"},
        build_timeout=15.0,
        heartbeat=2.0,
    )


async def load_through(settings: Settings, trouble: Trouble, seconds: float = SECONDS) -> Running:
    """Load a berth, make trouble meanwhile, and see that every promise was kept."""
    boots = BOOTS * settings.simulator.hosts
    plan = LoadPlan(boots=boots, rate=boots / seconds, patience=60.0 + seconds)
    async with asyncio.timeout(DEADLINE + 2 * seconds), running(settings) as berth:
        load = Load(berth.bus, plan)
        async with asyncio.TaskGroup() as group:
            loading = group.create_task(load.run())
            group.create_task(until_under_way(load, trouble, berth))
        result = loading.result()
        found = await settled(settings, 1.0 if result.lost else 60.0)
        buried = [letter.reason for letter in await berth.bus.transport.dead_letters(10)]
    assert result.lost == 0, f"{result.lost} of {plan.boots} builds never ended"
    assert not buried
    assert result.changed == 0, f"{result.changed} builds ended in two ways"
    assert not found.breaches
    assert result.statuses["unplaceable"] == 0, result.reasons()  # there is room for all of them
    assert sum(found.builds.values()) == plan.boots
    return berth


async def until_under_way(load: Load, trouble: Trouble, berth: Running) -> None:
    while load.ended < 10:
        await asyncio.sleep(0.02)
    await trouble(berth)


@pytest.mark.parametrize(
    ("layout", "kills", "pause"),
    [
        pytest.param({}, 4, 1.0, marks=pytest.mark.soak),
        pytest.param({"layout": "compact", "simulator": {"hosts": 600}}, 50, 8.0, marks=pytest.mark.soak),
    ],
)
async def test_random_kills_of_any_process_lose_nothing(
    layout: dict[str, Any], kills: int, pause: float, amqp_url: str, database_url: str, bus_name: str
) -> None:
    settings = plain_settings(amqp_url, database_url, bus_name).having(**layout)
    chance = random.Random("everyone")

    async def trouble(berth: Running) -> None:
        for _ in range(kills):
            await berth.kill(chance.choice(sorted(berth.starts())))
            await asyncio.sleep(chance.uniform(0.2, pause))

    berth = await load_through(settings, trouble, max(SECONDS, kills * pause / 2))
    assert sum(berth.starts().values()) >= kills  # the last ones may not have started again


@pytest.mark.soak
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_builds_continue_after_a_broker_outage(
    layout: str, restarted_rabbitmq: RabbitMQ, database_url: str, bus_name: str
) -> None:
    restarted_rabbitmq.start()

    async def trouble(berth: Running) -> None:
        await asyncio.sleep(3.0)  # a quorum queue is not safe from a kill in its very first second
        await asyncio.to_thread(crash, restarted_rabbitmq)

    settings = plain_settings(restarted_rabbitmq.url, database_url, bus_name).having(layout=layout)
    berth = await load_through(settings, trouble)
    assert set(berth.starts().values()) == {1}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_builds_continue_after_a_database_outage(
    layout: str, amqp_url: str, own_postgres: Postgres, bus_name: str
) -> None:
    async def trouble(berth: Running) -> None:
        for _ in range(2):
            await asyncio.to_thread(crash, own_postgres)
            await asyncio.sleep(1.0)

    settings = plain_settings(amqp_url, own_postgres.url, bus_name).having(layout=layout)
    berth = await load_through(settings, trouble)
    assert set(berth.starts().values()) == {1}
