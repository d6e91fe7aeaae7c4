"""The databases of a simulated world, in memory, with fail-overs that lose their last commits."""

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack

from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.sql.sqlite import Pause
from bus.sql.transaction import SqliteTransaction, Transaction
from tests.support.databases import inline_connection

_migrated: dict[str, tuple[str | None, sqlite3.Connection]] = {}  # by package


class _TimelineTransaction(SqliteTransaction):
    timeline = 1

    @property
    def history(self) -> str:
        return f"timeline {self.timeline}"


class SimulatedDatabase(Database):
    """An SQLite database that has a history of commits, as PostgreSQL has: a fail-over begins another."""

    timeline = 1

    async def _connected(self) -> Transaction:
        connected = _TimelineTransaction(self.name, await self._engine.connect())
        connected.timeline = self.timeline
        return connected


async def make_databases(cells: Iterable[str], pause: Pause) -> dict[str, SimulatedDatabase]:
    """Return all databases by name. A process migrates each package once, and then copies its tables."""
    packages = {"placement": "placement_worker", "scheduler": "scheduler_worker"}
    packages |= {f"cell_{cell}": "cell_conductor" for cell in cells}
    databases = {}
    for name, package in packages.items():
        database = databases[name] = SimulatedDatabase("sqlite+aiosqlite://", inline=True, pause=pause)
        if package not in _migrated:
            made = Database("sqlite+aiosqlite://", inline=True)
            await migrate(made, package)
            _migrated[package] = made.revision, sqlite3.connect(":memory:")
            inline_connection(made).backup(_migrated[package][1])
            await made.close()
        database.revision, tables = _migrated[package]
        tables.backup(inline_connection(database))
    return databases


class StandbyCopy:
    """The content of some databases that an asynchronous standby has; later commits can be lost."""

    def __init__(self, copies: Mapping[SimulatedDatabase, sqlite3.Connection]) -> None:
        self._copies = copies

    @staticmethod
    async def of(databases: Iterable[SimulatedDatabase]) -> "StandbyCopy":
        copies = {}
        async with AsyncExitStack() as stack:
            for database in databases:
                await stack.enter_async_context(database._writing)
                copies[database] = sqlite3.connect(":memory:", check_same_thread=False)
                inline_connection(database).backup(copies[database])
        return StandbyCopy(copies)

    async def promote(self) -> None:
        """Lose the commits since the copy: the databases have its content, and begin a new history."""
        async with AsyncExitStack() as stack:
            for database in self._copies:
                await stack.enter_async_context(database._writing)
            for database, copy in self._copies.items():
                copy.backup(inline_connection(database))
                copy.close()
                database.timeline += 1
                database.begin_new_history()
