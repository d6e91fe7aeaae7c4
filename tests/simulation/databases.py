"""The databases of a simulated world, in memory, with statements that fail, and with fail-overs that lose the
last commits.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from random import Random
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from berth.features import packages
from bus.errors import Unavailable
from bus.sql.database import Database
from bus.sql.failures import Conflict
from bus.sql.migrations import migrate
from bus.sql.sqlite import Connection, Pause
from bus.sql.statement import Transaction
from tests.support.databases import inline_connection

_migrated: dict[str, tuple[Mapping[str, str], sqlite3.Connection]] = {}  # by worker
_OCCURRENCE = 0.25  # 1 / the mean of the successful executions before a statement fails
_NEVER = -1
_RACE = 0.2  # of the failures: the statement lost a race, and the connection remains

in_worker: ContextVar[bool] = ContextVar("in_worker", default=False)  # True in the tasks of simulated workers


class StatementFaults:
    """Lets statements of workers fail once. Each different SQL text, and each COMMIT by the text before it,
    fails with the probability `rate`, at a random execution.
    """

    def __init__(self, seed: int, rate: float, happened: Callable[[str], None]) -> None:
        self._seed = seed
        self._rate = rate
        self._happened = happened
        self._left: dict[tuple[str, str], int] = {}  # successful executions before the failure

    def fails(self, database: str, sql: str) -> Random | None:
        """Return whether this execution fails: the random source of the failure, or None."""
        if not self._rate or not in_worker.get():
            return None
        name = database, sql
        left = self._left.get(name)
        if left is None:
            chance = self._chance(name)
            left = int(chance.expovariate(_OCCURRENCE)) if chance.random() < self._rate else _NEVER
        self._left[name] = left - 1 if left > 0 else _NEVER
        if left:
            return None
        self._happened(f"a statement of {database} fails: {' '.join(sql.split())[:120]}")
        return self._chance(name)

    def _chance(self, name: tuple[str, str]) -> Random:
        return Random(f"{name} in {self._seed}")


class _DirectTransaction(Transaction):
    """A transaction on the one connection of a database in memory, without the cost of SQLAlchemy."""

    def __init__(self, database: "SimulatedDatabase") -> None:
        super().__init__("sqlite", database.name)
        self._timeline = database.timeline
        self._committed = database.on_commit
        self._faults = database.faults
        self._of = database.title
        self._last = ""
        self._writes = False
        self._driver = Connection(inline_connection(database), None, database.pause, keep=True)

    @property
    def history(self) -> str:
        return f"timeline {self._timeline}"

    @property
    def connection(self) -> AsyncConnection:
        raise NotImplementedError("the workers of a simulated world use `fetch`")

    async def fetch(self, sql: str, values: Sequence[Any]) -> Sequence[Any]:
        self._last = sql
        if self._faults is not None and (chance := self._faults.fails(self._of, sql)) is not None:
            if self._writes and chance.random() < _RACE:
                raise Conflict(f"{self._of}: deadlock detected")
            raise Unavailable(f"{self._of}: no connection: terminated")
        try:
            return await self._driver.fetch(sql, values)
        except sqlite3.Error as error:
            raise self._explained(error) from error

    async def begin(self, begin: str) -> None:
        await self.fetch(begin, ())
        self._writes = "IMMEDIATE" in begin

    async def _commit(self) -> None:
        failure = self._faults and self._faults.fails(self._of, f"COMMIT after {self._last}")
        if failure and failure.random() < 0.5:
            raise Unavailable(f"{self._of}: no connection: terminated before the commit")
        await self._driver.commit()
        if self._committed is not None:
            self._committed()
        if failure:
            raise Unavailable(f"{self._of}: no connection: terminated after the commit")

    async def release_connection(self) -> None:
        if self._driver.raw.in_transaction:
            await self._driver.rollback()


class SimulatedDatabase(Database):
    """An SQLite database that has a history of commits, as PostgreSQL has: a fail-over begins another."""

    def __init__(self, pause: Pause | None, title: str = "", faults: StatementFaults | None = None) -> None:
        super().__init__("sqlite+aiosqlite://", inline=True, pause=pause)
        self.title = title
        self.pause = pause
        self.faults = faults
        self.timeline = 1
        self._is_used = False
        self.on_commit: Callable[[], None] | None = None  # called before any other transaction begins

    async def _connected(self) -> Transaction:
        if not self._is_used:
            self._is_used = True
            # SQLAlchemy's first statement also pauses: without it, each seed would have another history
            await (await self._engine.connect()).close()
        return _DirectTransaction(self)


async def make_databases(
    cells: Iterable[str], pause: Pause, faults: StatementFaults
) -> dict[str, SimulatedDatabase]:
    """Return all databases by name. A process makes the tables of each worker once, and then copies them."""
    workers = {"placement": "placement", "scheduler": "scheduler"}
    workers |= {f"cell_{cell}": "conductor" for cell in cells}
    databases = {}
    for name, worker in workers.items():
        database = databases[name] = SimulatedDatabase(pause, name, faults)
        if worker not in _migrated:
            made = Database("sqlite+aiosqlite://", inline=True)
            await migrate(made, *packages(worker))
            _migrated[worker] = made.migrations, sqlite3.connect(":memory:")
            inline_connection(made).backup(_migrated[worker][1])
            await made.close()
        database.migrations, tables = _migrated[worker]
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
