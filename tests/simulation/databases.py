"""The databases of a simulated world, in memory, with fail-overs that lose their last commits."""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.sql.sqlite import Connection, Pause
from bus.sql.transaction import Transaction
from tests.support.databases import inline_connection

_migrated: dict[str, tuple[str | None, sqlite3.Connection]] = {}  # by package


class _DirectTransaction(Transaction):
    """A transaction on the one connection of a database in memory, without the cost of SQLAlchemy."""

    def __init__(self, database: "SimulatedDatabase") -> None:
        super().__init__("sqlite", database.name)
        self._timeline = database.timeline
        self._committed = database.on_commit
        self._driver = Connection(inline_connection(database), None, database.pause, keep=True)

    @property
    def history(self) -> str:
        return f"timeline {self._timeline}"

    @property
    def connection(self) -> AsyncConnection:
        raise NotImplementedError("the workers of a simulated world use `fetch`")

    async def fetch(self, sql: str, values: Sequence[Any]) -> Sequence[Any]:
        try:
            return await self._driver.fetch(sql, values)
        except sqlite3.Error as error:
            raise self._explained(error) from error

    async def begin(self, begin: str) -> None:
        await self.fetch(begin, ())

    async def _commit(self) -> None:
        await self._driver.commit()
        if self._committed is not None:
            self._committed()

    async def release_connection(self) -> None:
        if self._driver.raw.in_transaction:
            await self._driver.rollback()


class SimulatedDatabase(Database):
    """An SQLite database that has a history of commits, as PostgreSQL has: a fail-over begins another."""

    def __init__(self, pause: Pause | None) -> None:
        super().__init__("sqlite+aiosqlite://", inline=True, pause=pause)
        self.pause = pause
        self.timeline = 1
        self._is_used = False
        self.on_commit: Callable[[], None] | None = None  # called before any other transaction begins

    async def _connected(self) -> Transaction:
        if not self._is_used:
            self._is_used = True
            # SQLAlchemy's first statement also pauses: without it, each seed would have another history
            await (await self._engine.connect()).close()
        return _DirectTransaction(self)


async def make_databases(cells: Iterable[str], pause: Pause) -> dict[str, SimulatedDatabase]:
    """Return all databases by name. A process migrates each package once, and then copies its tables."""
    packages = {"placement": "placement_worker", "scheduler": "scheduler_worker"}
    packages |= {f"cell_{cell}": "cell_conductor" for cell in cells}
    databases = {}
    for name, package in packages.items():
        database = databases[name] = SimulatedDatabase(pause)
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
