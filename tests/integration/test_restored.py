"""A berth is backed up during builds and restored into empty services, as docs/running.md describes.

`pg_dump`, `pg_restore`, an empty broker, agents that keep unknown guests; then clients repeat their
requests, and `berth audit --agents` lists the differences of agents.
"""

import asyncio
import shutil
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from berth import simulated_agents
from berth.operations.audit import audit
from berth.operations.guest_differences import compare_guests
from berth.settings import Settings
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.messages import BuildDeleteRequested, BuildEnded, BuildRequested
from bus.requests import Flavor
from compute_sim import AgentDisk, GuestFile
from deploy.servers import Postgres, find_postgres
from tests.support.berth_processes import settled
from tests.support.one_process import in_one_process
from tests.support.servers import a_database
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
            said: BuildEnded = await ended.get()
            self.ends[said.build].add((said.status, said.host))

    def new(self, count: int) -> list[str]:
        return [Clock().uuid() for _ in range(count)]


@pytest.fixture
async def fresh_database(postgres: Postgres) -> AsyncIterator[str]:
    async with a_database(postgres) as url:
        yield url


@pytest.fixture
def before(amqp_url: str, database_url: str, bus_name: str, tmp_path: Path) -> Settings:
    return Settings().having(
        amqp_url=amqp_url,
        database_url=database_url,
        exchange=bus_name,
        cells=("c1",),
        hosts=10,
        fail=0.1,
        build_time="exponential:0.2",
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
    heard = await bus.listen(topics.BUILD_DELETED.at(reply_to="client"))
    open_ = set(builds)
    await bus.publish(*(BuildDeleteRequested(build=one, cell="c1", reply_to="client") for one in open_))
    while open_:
        open_.discard((await in_time(heard.get())).build)
    await heard.stop()


async def test_a_backup_of_a_berth_at_work_is_restored_and_every_build_ends_once_or_is_named(
    before: Settings, fresh_database: str, bus_name: str, tmp_path: Path
) -> None:
    client, dump = Client(), str(tmp_path / "berth.dump")
    async with in_one_process(before) as bus, asyncio.TaskGroup() as group:
        hearing = group.create_task(client.handle(bus))
        old, under_way, later = client.new(12), client.new(40), client.new(10)
        await client.ask(bus, old)
        await until(lambda: len(client.ends) == len(old))
        await client.ask(bus, under_way)
        await until(lambda: len(client.ends) > len(old))
        await run("pg_dump", "--format=custom", f"--file={dump}", for_postgres(before.database.url))
        await client.ask(bus, later)
        await delete(bus, old[:3])
        await until(lambda: len(client.ends) == len(client.asked))
        hearing.cancel()

    after = before.having(database_url=fresh_database, exchange=f"{bus_name}-new", spare_unknown_guests=True)
    simulated_agents.guest_file(before, AGENT).rename(
        simulated_agents.guest_file(after, AGENT)
    )  # the same hosts go on
    await run("pg_restore", "--no-owner", f"--dbname={for_postgres(fresh_database)}", dump)

    client.ends.clear()
    async with in_one_process(after) as bus, asyncio.TaskGroup() as group:
        hearing = group.create_task(client.handle(bus))
        await until(lambda: nobody_is_built(after), "what was under way has come to its end")
        gone, strangers = by_kind((await compare_guests(after))[0])
        assert gone == set(old[:3])
        assert {*later} & guests_of(after) <= strangers <= {*under_way, *later}
        await delete(bus, gone)
        known = [one for one in client.asked if one not in {*strangers, *gone}]
        await client.ask(bus, known)  # everything, by the same names
        await until(lambda: client.ends.keys() >= {*known}, picture=lambda: client.ends)
        hearing.cancel()

    plain = after.having(spare_unknown_guests=False)
    async with in_one_process(plain) as bus, asyncio.TaskGroup() as group:
        hearing = group.create_task(client.handle(bus))
        await until(lambda: not strangers & guests_of(plain), "they are destroyed")
        await client.ask(bus, strangers)
        await until(lambda: client.ends.keys() >= {*known, *strangers}, picture=lambda: client.ends)
        assert all(len(ends) == 1 for ends in client.ends.values()), client.ends
        found = await settled(plain, builds=len(client.asked))
        assert found.breaches == []

        async def agrees() -> bool:
            await asyncio.sleep(0.2)
            return await compare_guests(plain) == ([], [])

        await until(agrees, "agents have what cells know, and nothing else")
        assert await bus.transport.dead_letters(10) == []
        hearing.cancel()


async def nobody_is_built(settings: Settings) -> bool:
    await asyncio.sleep(0.2)
    found = await audit(settings)
    return not found.builds.keys() & {"building", "swapping"}


def guests_of(settings: Settings) -> set[str]:
    copied = shutil.copy(
        simulated_agents.guest_file(settings, AGENT), f"{settings.database.state_dir}/copied"
    )
    disk = AgentDisk(file=GuestFile(Path(copied)))
    disk.close()
    return {*disk.guests}


def by_kind(breaches: Iterable[str]) -> tuple[set[str], set[str]]:
    kinds: dict[bool, set[str]] = {True: set(), False: set()}
    for sentence in breaches:
        kinds["has no guest" in sentence].add(sentence.partition(":")[0])
    return kinds[True], kinds[False]
