"""SQL statements for PostgreSQL and SQLite in one text, which may join tables with rows that a caller passes.

In addition to SQL, a text may contain:

    :name            a parameter. PostgreSQL may need its type: CAST(:now AS bigint).
    {n: id int}      in a FROM or a JOIN: a table `n` with the rows that the caller passes, and its columns
                     with their types: int, float, str, bool or Json (a JSON column).
    FOR ... OF x     row locks. They are omitted on SQLite, which locks the whole database.
    json_agg         becomes json_group_array on SQLite, and json_build_object becomes json_object.
    EXACTLY(x.y)     converts a float column to a text with all digits.
    {others}         in the last of several statements that are executed `together`: the place in its WITH
                     clause at which all preceding statements are inserted. {after} is a condition in the last
                     statement that is true after the preceding statements.

Rows are read by column name, row["uuid"]. Rows of few columns may also be unpacked in order: `for id_, uuid
in rows`. Use RETURNING for the number of changed rows.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NewType

import msgspec

from bus.sql.transaction import Dialect, Transaction

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


_LOCKING = re.compile(r"FOR (NO KEY UPDATE|UPDATE|SHARE) OF \w+")
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
