"""SQL statements for PostgreSQL and SQLite in one text, which may join tables with rows that a caller passes.

In addition to SQL, a text may contain:

    :name            a parameter. PostgreSQL may need its type: CAST(:now AS bigint).
    {n: id int}      in a FROM or a JOIN: a table `n` with the rows that the caller passes, and its columns
                     with their types: int, float, str, bool or Json (a JSON column).
    FOR ... OF x     row locks, perhaps SKIP LOCKED. They are omitted on SQLite, which locks the whole
                     database.
    json_agg         becomes json_group_array on SQLite, and json_build_object becomes json_object.
    EXACTLY(x.y)     converts a float column to a text with all digits.
    {others}         in the last of several statements that are executed `together`: the place in its WITH
                     clause at which all preceding statements are inserted. {after} is a condition in the last
                     statement that is true after the preceding statements.

Rows are read by column name, row["uuid"]. Rows of few columns may also be unpacked in order: `for id_, uuid
in rows`. Use RETURNING for the number of changed rows.
"""

import asyncio
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NewType, cast

import msgspec
from sqlalchemy import exc, text
from sqlalchemy.engine import CursorResult
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.sql.base import Executable

from bus.errors import Unavailable
from bus.sql import postgres
from bus.sql.failures import READ_ONLY, explained, reason, sqlstate
from bus.sql.postgres import PostgresPool

# Transactions on PostgreSQL and SQLite: execute statements, commit or roll back, and translate errors.


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
        """Execute a statement; raise a driver's error as the exception that says what it means for the
        transaction.
        """
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
    async def begin(self, begin: str) -> None:
        """Execute the statement that begins the transaction."""

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


async def in_turn(tx: Transaction, table: str) -> None:
    """Wait until no other transaction is open that called this for the table, so that one transaction at a
    time judges a limit on the number of its rows. Reads and writes without this call do not wait.

    Call it first: a statement before it may not see the rows that the other transactions have inserted.
    """
    if tx.dialect == "postgresql":  # writers of SQLite wait for each other
        await tx.execute(text(f"LOCK TABLE {table} IN SHARE UPDATE EXCLUSIVE MODE"))


class PostgresTransaction(Transaction):
    """A transaction on PostgreSQL. If it is cancelled during a statement, its connection is closed."""

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
        except postgres.FAILURES as error:  # asyncpg's exceptions that SQLAlchemy does not convert
            raise self._explained(error) from error

    async def fetch(self, sql: str, values: Sequence[Any]) -> Sequence[Any]:
        try:
            found: Sequence[Any] = await self._driver.fetch(sql, *values)
            return found
        except asyncio.CancelledError:
            self._unfinished = True
            raise
        except postgres.FAILURES as error:
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
        except postgres.FAILURES as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> Exception:
        if self._reads and sqlstate(error) == READ_ONLY:
            return error  # a defect: the statement writes in a read-only transaction
        found = explained(error, self._name)
        if self._pool.broken(self._driver, error) and found is error:
            return Unavailable(f"{self._name}: no connection: {reason(error)}")
        return found


class SqliteTransaction(Transaction):
    """A transaction on SQLite."""

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


Json = NewType("Json", object)  # a JSON column: any value that msgspec can encode; None is NULL

_POSTGRESQL = {int: "bigint", float: "double precision", str: "text", bool: "boolean", Json: "json"}
# json_extract returns a float without a fraction as an integer, so only floats need a cast.
_SQLITE = {int: "{}", float: "CAST({} AS REAL)", str: "{}", bool: "{}", Json: "{}"}

_encode = msgspec.json.Encoder().encode


class Rows:
    """A table of rows that the caller passes to a statement: the SQL for its FROM, and the parameters."""

    def __init__(self, dialect: Dialect, name: str, **columns: Any) -> None:
        unknown = [str(kind) for kind in columns.values() if kind not in _POSTGRESQL]
        if unknown or not columns or not all(identifier.isidentifier() for identifier in (name, *columns)):
            raise TypeError(f"rows {name}({', '.join(columns)}) of {unknown or 'columns with such names'}")
        self._postgresql = dialect == "postgresql"
        self._keys = [f"{name}_{column}" if self._postgresql else name for column in columns]
        self._json = [index for index, kind in enumerate(columns.values()) if kind is Json]
        if self._postgresql:
            arrays = (
                f"CAST(:{key} AS {_POSTGRESQL[kind]}[])"
                for key, kind in zip(self._keys, columns.values(), strict=True)
            )
            self._sql = f"unnest({', '.join(arrays)}) AS {name}({', '.join(columns)})"
            values = (
                f"CAST(:{key} AS {_POSTGRESQL[kind]}) AS {column}"
                for key, (column, kind) in zip(self._keys, columns.items(), strict=True)
            )
            self.single = f"(SELECT {', '.join(values)}) AS {name}"
        else:
            values = (
                _SQLITE[kind].format(f"json_extract(value, '$[{index}]')") + f" AS {column}"
                for index, (column, kind) in enumerate(columns.items())
            )
            self._sql = self.single = f"(SELECT {', '.join(values)} FROM json_each(:{name})) AS {name}"

    def __str__(self) -> str:
        return self._sql

    def bind(self, values: Iterable[Sequence[Any]]) -> dict[str, Any]:
        """Return the parameters for the rows in `values`, each with its values in the order of the
        columns.
        """
        listed = list(values)
        if self._json:
            listed = [self._with_json(row) for row in listed]
        if not self._postgresql:
            return {self._keys[0]: _encode(listed).decode()}
        if not listed:
            return {key: [] for key in self._keys}
        return dict(zip(self._keys, map(list, zip(*listed, strict=True)), strict=True))

    def bind_single(self, row: Sequence[Any]) -> dict[str, Any]:
        """Return the parameters of one row, for a statement that contains the SQL text `Rows.single`.

        PostgreSQL estimates the number of rows in an array anew each time; a plan for one row can be reused.
        """
        if not self._postgresql:
            return self.bind([row])
        return dict(zip(self._keys, self._with_json(row) if self._json else row, strict=True))

    def _with_json(self, row: Sequence[Any]) -> list[Any]:
        copy = list(row)
        for index in self._json:
            copy[index] = None if copy[index] is None else _encode(copy[index]).decode()
        return copy


_LOCKING = re.compile(r"FOR (NO KEY UPDATE|UPDATE|SHARE) OF \w+( SKIP LOCKED)?")
_EXACTLY = re.compile(r"EXACTLY\((\w+\.\w+)\)")
_NAMED = re.compile(r"(?<![:\w]):(\w+)")


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    n: Rows | None
    single: bool
    sql: str
    alone: str  # the SQL for the driver, with numbered parameters
    names: tuple[str, ...]  # names of the parameters, in the order of their numbers

    def values(self, listed: Sequence[Sequence[Any]], params: dict[str, Any]) -> list[Any]:
        if self.n is not None:
            params = (self.n.bind_single(listed[0]) if self.single else self.n.bind(listed)) | params
        return [params[name] for name in self.names]


class Statement:
    """An SQL statement, called with a transaction and parameters; `columns` describes the rows to pass."""

    def __init__(self, sql: str, **columns: Any) -> None:
        self._sql = sql
        self._columns = columns
        self._made: dict[tuple[str, bool], _Made] = {}
        self._joined: dict[tuple[_Made, ...], str] = {}

    async def __call__(
        self, tx: Transaction, values: Iterable[Sequence[Any]] = (), **params: Any
    ) -> Sequence[Any]:
        return await self.of(values, **params)(tx)

    def of(self, values: Iterable[Sequence[Any]] = (), **params: Any) -> "BoundStatement":
        """Return the statement with rows of values and with named parameters, ready to be executed."""
        return BoundStatement(self, list(values), params)

    async def together(
        self,
        calls: Sequence["BoundStatement"],
        tx: Transaction,
        values: Iterable[Sequence[Any]] = (),
        **params: Any,
    ) -> Sequence[Any]:
        """Execute the statements `calls`, and then this statement; return the rows of this statement. On
        PostgreSQL this takes one round trip.

        On PostgreSQL no statement may depend on the effect of another, nor change the same rows.
        """
        if tx.dialect == "sqlite":
            for call in calls:
                await call(tx)
            return await self(tx, values, **params)
        every = [*calls, self.of(values, **params)]
        made = tuple(call.statement.made(tx.dialect, len(call.values) == 1) for call in every)
        sql = self._joined.get(made)
        if sql is None:
            sql = self._joined[made] = _joined(made)
        bound = []
        for statement, call in zip(made, every, strict=True):
            bound += statement.values(call.values, call.params)
        return await tx.fetch(sql, bound)

    def made(self, dialect: Dialect, single: bool) -> _Made:
        found = self._made.get((dialect, single))
        if found is None:
            found = self._made[dialect, single] = self._make(dialect, single)
        return found

    def _make(self, dialect: Dialect, single: bool) -> _Made:
        sql = self._sql
        if dialect == "sqlite":
            sql = _LOCKING.sub("", sql).replace("json_agg(", "json_group_array(")
            sql = sql.replace("json_build_object(", "json_object(")
            sql = _EXACTLY.sub(r"printf('%!.17g', \1)", sql)
        else:
            sql = _EXACTLY.sub(r"CAST(\1 AS text)", sql)
        n = Rows(dialect, "n", **self._columns) if self._columns else None
        if n is not None:
            sql = sql.replace("{n}", n.single if single else str(n))
        names = tuple(dict.fromkeys(_NAMED.findall(sql)))
        alone = sql.replace("{after}", "true").replace("{others}", "")
        return _Made(n, single, sql, _numbered(alone, names, 1, "?" if dialect == "sqlite" else "$"), names)


_DECLARED = re.compile(r"\{n: ([^}]*)\}")
_TYPES = {"int": int, "float": float, "str": str, "bool": bool, "Json": Json}


def sql(text: str) -> Statement:
    """Return a Statement; its SQL may declare rows that the caller passes, `{n: id int}`, and use `:NOW`, the
    current time.
    """
    columns = [column.split() for declared in _DECLARED.findall(text) for column in declared.split(",")]
    text = _DECLARED.sub("{n}", text).replace(":NOW", "CAST(:now AS double precision)")
    return Statement(text, **{name: _TYPES[type_] for name, type_ in columns})


def deletes_oldest(table: str, key: str, *, where: str = "", time: str = "at") -> Statement:
    """Delete at most `:most` rows whose `time` is before `:before`, the oldest first; return their keys."""
    condition = f"{where} AND {time}" if where else time
    return sql(f"""
        DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM {table}
        WHERE {condition} < :before ORDER BY {time} LIMIT :most) RETURNING {key}
    """)


@dataclass(frozen=True, slots=True)
class BoundStatement:
    """A statement with its parameters and rows, ready to be executed in a transaction."""

    statement: Statement
    values: Sequence[Sequence[Any]]
    params: dict[str, Any]

    async def __call__(self, tx: Transaction, *preceding: "BoundStatement") -> Sequence[Any]:
        if preceding:
            return await self.statement.together(preceding, tx, self.values, **self.params)
        made = self.statement.made(tx.dialect, len(self.values) == 1)
        return await tx.fetch(made.alone, made.values(self.values, self.params))


def _numbered(sql: str, names: Sequence[str], first: int, mark: str) -> str:
    return _NAMED.sub(lambda found: f"{mark}{first + names.index(found[1])}", sql)


def _joined(made: Sequence[_Made]) -> str:
    """Return one SQL text that executes the statements, with all but the last in a WITH clause."""
    *preceding, leading = made
    first, parts = 1, ""
    for position, statement in enumerate(preceding):
        parts += f"other{position} AS ({_numbered(statement.sql, statement.names, first, '$')} RETURNING 1), "
        first += len(statement.names)
    done = [f"(SELECT count(*) FROM other{position})" for position in range(len(preceding))]
    sql = _numbered(leading.sql, leading.names, first, "$").replace("{others}", parts)
    return sql.replace("{after}", f"{' + '.join(done) or 0} >= 0")
