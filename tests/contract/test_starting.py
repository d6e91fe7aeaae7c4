"""The start of workers: their queues exist before them, and their files are private."""

import asyncio
import json
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import aio_pika
import pytest
from rich.console import Console
from sqlalchemy import text

from berth import composition
from berth.commands.run import migrate_all, up
from berth.kit.publishing import publish
from berth.services import embedded
from berth.settings import Settings
from bus.delivery.runner import Bus
from bus.errors import MigrationsBroken, Unavailable, Unroutable
from bus.messages import BuildDeleteRequested, BuildRequested
from bus.requests import Flavor
from bus.sql.database import Database
from bus.topics import BUILD_REQUESTED
from bus.worker import Worker, central_queues, on
from tests.support.buses import Connect
from tests.support.ids import uid
from tests.support.waiting import in_time, patience


def test_the_central_queues_equal_the_queues_of_a_scheduler() -> None:
    workers = [worker for worker in composition.all_workers_without_a_bus() if worker.name == "scheduler"]
    rows = [row for worker in workers for row in worker.consumes if row.address.topic.expected]
    events = {spec.name: spec for row in rows if (spec := workers[0].queue_of(row, "r")).durable}
    assert {spec.name: spec for spec in central_queues()} == events


@pytest.mark.services
async def test_a_request_that_is_published_before_any_scheduler_started_is_handled(
    amqp_url: str, bus_name: str
) -> None:
    settings = Settings().having(amqp_url=amqp_url, exchange=bus_name)
    async with (
        Bus(composition.transport(settings, "placement")),
        await aio_pika.connect(amqp_url) as connection,
    ):
        channel = await connection.channel()
        exchange = await channel.get_exchange(bus_name)
        watching = await channel.declare_queue(exclusive=True)
        await watching.bind(exchange, "#")
        build = "00000000-0000-0000-0000-000000000001"
        request = {"request": build, "instances": [build], "flavor": {"name": "small", "vcpus": 1}}
        message = aio_pika.Message(json.dumps(request).encode())
        await exchange.publish(message, "build.requested", mandatory=True)
        handled: asyncio.Queue[BuildRequested] = asyncio.Queue()
        stopping = asyncio.Event()
        worker = Worker("scheduler", consumes=[on(BUILD_REQUESTED, handled.put)])
        async with (
            Bus(composition.transport(settings, "scheduler")) as scheduler,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(scheduler.serve(worker, stopping))
            assert (await in_time(handled.get())).request == build
            stopping.set()


REQUEST = BuildRequested(request=uid(1), instances=(uid(2),), flavor=Flavor(name="small", vcpus=1))


async def test_publishing_without_a_consumer_names_the_missing_worker(connect: Connect) -> None:
    async with Bus(connect()) as client:
        with pytest.raises(
            Unroutable, match=r"no queue is bound to build\.requested: not running: scheduler"
        ):
            await publish(client, REQUEST, patience=0.0)
        with pytest.raises(
            Unroutable, match=r"build\.delete\.c7: not running: that cell.s conductor \(tried"
        ):
            await publish(client, BuildDeleteRequested(build=uid(2), cell="c7"), patience=0.2)


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def settings_in(directory: Path) -> Settings:
    return Settings().having(cells=("c1",), state_dir=str(directory))


async def at_work(directory: Path) -> None:
    """Wait until each worker has opened its database."""
    while not all((directory / f"{name}.db-wal").exists() for name in ("placement", "scheduler", "cell_c1")):
        await asyncio.sleep(0.01)


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in (directory, *directory.iterdir())}


@pytest.mark.parametrize("existed", [False, True])
async def test_the_state_directory_is_private(tmp_path: Path, umask: None, existed: bool) -> None:
    directory = tmp_path / "deep" / "state"
    if existed:  # the directory of an earlier berth
        directory.mkdir(parents=True)
        for name in ("bus.db", "placement.db", "cell_c1.db"):
            with closing(sqlite3.connect(directory / name)) as file, file:
                file.execute("PRAGMA user_version = 0")
    async with patience(), embedded(settings_in(directory), open_socket=True):
        await at_work(directory)
        found = modes(directory)
    assert {"bus.db", "bus.db-wal", "bus.db-shm", "bus.sock", "placement.db", "placement.db-wal"} <= set(
        found
    )
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}
    assert found[directory.name] == 0o700


async def test_a_second_berth_does_not_start_even_if_files_are_removed(tmp_path: Path) -> None:
    async with patience(), embedded(settings_in(tmp_path)):
        await at_work(tmp_path)
        for path in tmp_path.iterdir():
            if not path.name.startswith(
                ("placement", "scheduler", "cell")
            ):  # which are being opened again and again
                path.unlink()
        with pytest.raises(Unavailable, match=r"^another berth is running with its state in "):
            async with embedded(settings_in(tmp_path)):
                pass
    async with patience(), embedded(settings_in(tmp_path)):
        pass


async def test_files_of_a_worker_are_readable_by_their_owner_only(tmp_path: Path, umask: None) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/new/", namespace="store")
    async with database.write() as tx:
        await tx.execute(text("CREATE TABLE t (n)"))
    found = modes(tmp_path / "new")
    await database.close()
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}
    assert "store.db-wal" in found


async def test_no_database_is_created_beside_one_with_tables_that_no_migration_made(tmp_path: Path) -> None:
    settings = Settings().having(state_dir=str(tmp_path), cells=("c1",))
    with closing(sqlite3.connect(tmp_path / "placement.db")) as older, older:
        older.execute("CREATE TABLE alembic_version (version_num TEXT)")
    for start in (migrate_all, up):
        with pytest.raises(MigrationsBroken, match=r"a version before 0\.2\.0, .*: alembic_version"):
            await start(settings, Console(quiet=True))
    assert [file.name for file in tmp_path.glob("*.db")] == ["placement.db"]
