"""Whatever is killed while builds are under way: every accepted build ends exactly once, no claim leaks."""

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from berth.loadtest import Load, LoadOutcome, LoadPlan
from berth.settings import Settings
from deploy.servers import Postgres, RabbitMQ, find_postgres, private_directory
from tests.support.berth_processes import Running, running, settled
from tests.support.servers import crash, installed

pytestmark = [pytest.mark.services, pytest.mark.slow]

DEADLINE = 180.0
RATE = 60.0
SECONDS = 8.0

Trouble = Callable[[Running], Awaitable[None]]


@pytest.fixture
def settings(amqp_url: str, database_url: str, bus_name: str) -> Settings:
    return plain_settings(amqp_url, database_url, bus_name)


@pytest.fixture
def directory() -> Iterator[Path]:
    made = private_directory("berth-crashes-")
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def own_rabbitmq(restarted_rabbitmq: RabbitMQ) -> RabbitMQ:
    restarted_rabbitmq.start()
    return restarted_rabbitmq


@pytest.fixture
def own_postgres(directory: Path) -> Iterator[Postgres]:
    installed(find_postgres)
    with Postgres(directory / "postgres") as server:
        yield server


def plain_settings(amqp_url: str, database_url: str, bus_name: str) -> Settings:
    return Settings().having(
        amqp_url=amqp_url,
        database_url=database_url,
        exchange=bus_name,
        cells=("c1", "c2"),
        hosts=60,
        fail=0.1,
        build_time="exponential:0.3",
        build_timeout=15.0,
        heartbeat=2.0,
    )


async def told(server: Postgres, *commands: str) -> None:
    connection = await asyncpg.connect(server.url.replace("+asyncpg", ""))
    try:
        for command in commands:
            await connection.execute(command)
    finally:
        await connection.close()


async def load_through(
    settings: Settings, trouble: Trouble, boots: int = int(RATE * SECONDS), deadline: float = DEADLINE
) -> tuple[LoadOutcome, Running]:
    """Load a berth, make trouble meanwhile, and see that every promise was kept."""
    plan = LoadPlan(boots=boots, rate=RATE, patience=60.0)
    async with asyncio.timeout(deadline), running(settings) as berth:
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
    return result, berth


async def until_under_way(load: Load, trouble: Trouble, berth: Running) -> None:
    while load.ended < 10:
        await asyncio.sleep(0.02)
    await trouble(berth)


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["placement", "scheduler", "conductor.c1", "compute.c1", "ironic"])
async def test_a_worker_killed_at_any_moment_costs_no_build(settings: Settings, victim: str) -> None:
    chance = random.Random(victim)
    kills = 3

    async def trouble(berth: Running) -> None:
        for _ in range(kills):
            await berth.kill(victim)
            await asyncio.sleep(chance.uniform(0.7, 2.5))

    _, berth = await load_through(settings, trouble)
    assert berth.starts()[victim] == 1 + kills


@pytest.mark.parametrize("together", [pytest.param(1, marks=pytest.mark.soak), 2])
async def test_anybody_may_be_killed_at_any_moment(settings: Settings, together: int) -> None:
    settings = settings.having(cells_a_process=together)
    chance = random.Random("everyone")
    kills = 10

    async def trouble(berth: Running) -> None:
        for _ in range(kills):
            await berth.kill(chance.choice(sorted(berth.starts())))
            await asyncio.sleep(chance.uniform(0.2, 1.0))

    _, berth = await load_through(settings, trouble)
    assert sum(berth.starts().values()) == len(berth.starts()) + kills


@pytest.mark.soak
async def test_four_cells_whose_conductors_and_agents_are_killed_end_all_of_5000_builds(
    amqp_url: str, database_url: str, bus_name: str
) -> None:
    """Twenty flavors on 4 × 250 hosts, one attempt in five failing."""
    settings = plain_settings(amqp_url, database_url, bus_name).having(
        cells=("c1", "c2", "c3", "c4"), hosts=1000, fail=0.2
    )
    chance = random.Random("four cells")
    kills = 60

    async def trouble(berth: Running) -> None:
        within = sorted(role for role in berth.starts() if role.startswith(("conductor.", "compute.")))
        for _ in range(kills):
            await berth.kill(chance.choice(within))
            await asyncio.sleep(chance.uniform(0.2, 1.5))

    result, berth = await load_through(settings, trouble, boots=5000, deadline=400.0)
    assert sum(berth.starts().values()) == len(berth.starts()) + kills
    boots = result.boots.values()
    assert all(boot.attempts for boot in boots)
    assert all(boot.reason for boot in boots if boot.status == "error")
    assert sum(boot.attempts > 1 and boot.status == "active" for boot in boots) > 500  # on an alternate
    print(result.summary())


def restart(server: RabbitMQ | Postgres) -> None:
    server.restart()


HOW = pytest.mark.parametrize(
    "end", [pytest.param(restart, id="restarted", marks=pytest.mark.soak), pytest.param(crash, id="killed")]
)
End = Callable[[RabbitMQ | Postgres], None]


@HOW
async def test_the_broker_may_go_away_and_come_back(
    own_rabbitmq: RabbitMQ, database_url: str, bus_name: str, end: End
) -> None:
    async def trouble(berth: Running) -> None:
        await asyncio.sleep(3.0)  # a quorum queue is not safe from a kill in its very first second
        await asyncio.to_thread(end, own_rabbitmq)

    _, berth = await load_through(plain_settings(own_rabbitmq.url, database_url, bus_name), trouble)
    assert set(berth.starts().values()) == {1}


@HOW
async def test_the_database_may_go_away_and_come_back(
    amqp_url: str, own_postgres: Postgres, bus_name: str, end: End
) -> None:
    async def trouble(berth: Running) -> None:
        for _ in range(2):
            await asyncio.to_thread(end, own_postgres)
            await asyncio.sleep(1.0)

    _, berth = await load_through(plain_settings(amqp_url, own_postgres.url, bus_name), trouble)
    assert set(berth.starts().values()) == {1}


@pytest.mark.soak
async def test_a_database_that_is_read_only_for_ten_seconds_loses_nothing(
    amqp_url: str, own_postgres: Postgres, bus_name: str
) -> None:
    async def trouble(berth: Running) -> None:
        for mode, seconds in (("on", 10.0), ("off", 0.0)):
            await told(
                own_postgres,
                f"ALTER SYSTEM SET default_transaction_read_only = {mode}",
                "SELECT pg_reload_conf()",
            )
            await asyncio.sleep(seconds)

    _, berth = await load_through(plain_settings(amqp_url, own_postgres.url, bus_name), trouble)
    assert set(berth.starts().values()) == {1}
