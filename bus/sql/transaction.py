"""Transactions on PostgreSQL and SQLite: execute statements, commit or roll back, and translate errors."""

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, cast

from sqlalchemy import exc
from sqlalchemy.engine import CursorResult
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.sql.base import Executable

from bus.errors import Unavailable
from bus.sql import postgres, servers
from bus.sql.failures import READ_ONLY, explained, reason, sqlstate
from bus.sql.postgres import PostgresPool

Dialect = Literal["postgresql", "sqlite"]
Params = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class Transaction(ABC):
    """A transaction: all of its changes are committed, or no change."""

    def __init__(self, dialect: Dialect, name: str) -> None:
        self.dialect: Final = dialect
        self._name = name  # name of the database
        self._after_commit: list[Callable[[], None]] = []

    @property
    def history(self) -> str:
        """Return an id of the server's history, which a fail-over changes; "" on SQLite or if unknown."""
        return ""

    @property
    @abstractmethod
    def connection(self) -> AsyncConnection:
        """Return the SQLAlchemy connection of this transaction."""

    async def execute(self, statement: Executable, params: Params | None = None) -> CursorResult[Any]:
        try:
            # Core statements that are not of the ORM always return a CursorResult.
            return cast(CursorResult[Any], await self.connection.execute(statement, params))
        except (exc.SQLAlchemyError, OSError) as error:
            raise self._explained(error) from error

    @abstractmethod
    async def fetch(self, sql: str, values: Sequence[Any]) -> Sequence[Any]:
        """Execute a statement in the database driver's SQL syntax and return its rows; faster than `execute`.

        SQL refers to values as $1 (PostgreSQL) or ?1 (SQLite). A row is read by column name, or unpacked.
        """

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Register a callback for after the commit; on SQLite it is called before the next writer begins."""
        self._after_commit.append(callback)

    def _explained(self, error: Exception) -> Exception:
        return explained(error, self._name)

    @abstractmethod
    async def begin(self, begin: str) -> None: ...

    async def commit(self) -> None:
        """Commit the transaction now; `write()` does so at the end of its block."""
        await self._commit()
        for callback in self._after_commit:
            callback()

    @abstractmethod
    async def _commit(self) -> None: ...

    @abstractmethod
    async def release_connection(self) -> None:
        """Roll back uncommitted changes, and return the connection to the pool."""


class PostgresTransaction(Transaction):
    def __init__(self, name: str, pool: PostgresPool, pooled: PoolProxiedConnection) -> None:
        super().__init__("postgresql", name)
        self._pool = pool
        self._pooled = pooled
        self._driver: Any = pooled.driver_connection
        # Made at the first use: most statements are executed by asyncpg, without SQLAlchemy's connection.
        self._connection: AsyncConnection | None = None
        # Whether to roll back at the end. A single statement needs this too if it was cancelled after its
        # preparation: the server then waits for its execution.
        self._unfinished = False
        self._reads = False

    @property
    def history(self) -> str:
        return str(self._driver.history or "")

    @property
    def connection(self) -> AsyncConnection:
        if self._connection is None:
            self._connection = self._pool.connection_on(self._pooled)
        return self._connection

    async def execute(self, statement: Executable, params: Params | None = None) -> CursorResult[Any]:
        try:
            return await super().execute(statement, params)
        except asyncio.CancelledError:
            self._unfinished = True
            raise
        except servers.FAILURES as error:  # asyncpg's exceptions that SQLAlchemy does not convert
            raise self._explained(error) from error

    async def fetch(self, sql: str, values: Sequence[Any]) -> Sequence[Any]:
        try:
            found: Sequence[Any] = await self._driver.fetch(sql, *values)
            return found
        except asyncio.CancelledError:
            self._unfinished = True
            raise
        except servers.FAILURES as error:
            raise self._explained(error) from error

    async def begin(self, begin: str) -> None:
        self._unfinished, self._reads = True, begin == postgres.READ
        await self._execute_command(begin)

    async def _commit(self) -> None:
        if await self._execute_command("COMMIT") != "COMMIT":
            raise RuntimeError("a statement of this transaction had failed: it was rolled back")
        self._unfinished = False

    async def release_connection(self) -> None:
        try:
            if self._unfinished and not self._driver.is_closed():
                await postgres.roll_back(self._driver)
        finally:
            self._pooled.close()

    async def _execute_command(self, command: str) -> str:
        try:
            return str(await self._driver.execute(command))
        except servers.FAILURES as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> Exception:
        if self._reads and sqlstate(error) == READ_ONLY:
            return error  # a defect: the statement writes in a read-only transaction
        found = explained(error, self._name)
        if self._pool.broken(self._driver, error) and found is error:
            return Unavailable(f"{self._name}: no connection: {reason(error)}")
        return found


class SqliteTransaction(Transaction):
    def __init__(self, name: str, connection: AsyncConnection) -> None:
        super().__init__("sqlite", name)
        self._connection = connection

    @property
    def connection(self) -> AsyncConnection:
        return self._connection

    async def fetch(self, sql: str, values: Sequence[Any]) -> Sequence[Any]:
        try:
            driver: Any = (await self._connection.get_raw_connection()).driver_connection
            found: Sequence[Any] = await driver.fetch(sql, values)
            return found
        except (exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise self._explained(error) from error

    async def begin(self, begin: str) -> None:
        try:
            await self._connection.exec_driver_sql(begin)
        except (exc.SQLAlchemyError, OSError) as error:
            raise self._explained(error) from error

    async def _commit(self) -> None:
        try:
            await self._connection.commit()
        except (exc.SQLAlchemyError, OSError) as error:
            raise self._explained(error) from error

    async def release_connection(self) -> None:
        connection = self._connection
        if connection.sync_connection is None:
            return
        try:
            await connection.close()
        except (exc.SQLAlchemyError, OSError) as error:
            # Not raised: the transaction is committed, or the caller raises the error that ended it.
            if not connection.closed:
                await connection.invalidate(error)
                await connection.close()
