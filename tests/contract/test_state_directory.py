"""Where an embedded berth keeps its state: its owner's alone, and one berth's at a time."""

import asyncio
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from berth.embedded import embedded
from berth.settings import Cell, DatabaseSettings, Settings
from bus.errors import Unavailable
from bus.sql.database import Database
from tests.support.waiting import DEADLINE


@pytest.fixture(params=[0o000, 0o022], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def settings_in(directory: Path) -> Settings:
    return Settings(cells=(Cell("c1"),), database=DatabaseSettings(state_dir=str(directory)))


async def at_work(directory: Path) -> None:
    """Returns when each worker has its database open."""
    while not all((directory / f"{name}.db-wal").exists() for name in ("placement", "scheduler", "cell_c1")):
        await asyncio.sleep(0.01)


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in (directory, *directory.iterdir())}


@pytest.mark.parametrize("existed", [False, True])
async def test_only_its_owner_may_look_into_it(tmp_path: Path, umask: None, existed: bool) -> None:
    directory = tmp_path / "deep" / "state"
    if existed:  # as an earlier berth left it
        directory.mkdir(parents=True)
        for name in ("bus.db", "placement.db", "cell_c1.db"):
            with closing(sqlite3.connect(directory / name)) as file, file:
                file.execute("PRAGMA user_version = 0")
    async with asyncio.timeout(DEADLINE), embedded(settings_in(directory), open_socket=True):
        await at_work(directory)
        found = modes(directory)
    assert {"bus.db", "bus.db-wal", "bus.db-shm", "bus.sock", "placement.db", "placement.db-wal"} <= set(
        found
    )
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}
    assert found[directory.name] == 0o700


async def test_a_second_berth_does_not_start_whatever_is_removed_meanwhile(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE), embedded(settings_in(tmp_path)):
        await at_work(tmp_path)
        for path in tmp_path.iterdir():
            if not path.name.startswith(
                ("placement", "scheduler", "cell")
            ):  # which are being opened again and again
                path.unlink()
        with pytest.raises(Unavailable, match=r"^another berth is running with its state in "):
            async with embedded(settings_in(tmp_path)):
                pass
    async with asyncio.timeout(DEADLINE), embedded(settings_in(tmp_path)):
        pass


async def test_files_of_a_worker_are_readable_by_their_owner_only(tmp_path: Path, umask: None) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/new/", namespace="store")
    async with database.write() as tx:
        await tx.execute(text("CREATE TABLE t (n)"))
    found = modes(tmp_path / "new")
    await database.close()
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}
    assert "store.db-wal" in found
