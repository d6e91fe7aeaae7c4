"""SQL as this store writes it: one text for both databases, most of it over a list of rows called `n`."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import TextClause, text

from bus.sql.database import Dialect, Transaction
from bus.sql.rows import Rows, rows

_LOCKING = re.compile(r"FOR (NO KEY )?UPDATE OF \w+")
_EXACTLY = re.compile(r"EXACTLY\((\w+\.\w+)\)")
_NAMED = re.compile(r"(?<![:\w]):(\w+)")


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """A statement for one database, over one row or a list."""

    n: Rows | None
    single: bool
    sql: str
    clause: TextClause  # for SQLAlchemy
    alone: str  # for PostgreSQL's driver
    names: tuple[str, ...]  # of its values, in their order there

    def bound(self, listed: Sequence[Sequence[Any]], params: dict[str, Any]) -> dict[str, Any]:
        if self.n is None:
            return params
        return (self.n.bind_single(listed[0]) if self.single else self.n.bind(listed)) | params


class Statement:
    """A statement; `{n}` in it stands for rows with these columns. SQLite locks as a whole, never rows.

    EXACTLY(column) is a float as a text that reads as the same float. Of those that go `together` the leading
    one has `{others}` where they are named, and `{after}`, a condition that is true when they have been done.
    """

    def __init__(self, sql: str, **columns: Any) -> None:
        self._sql = sql
        self._columns = columns
        self._made: dict[tuple[str, bool], _Made] = {}
        self._joined: dict[tuple[_Made, ...], str] = {}

    async def __call__(
        self, tx: Transaction, values: Iterable[Sequence[Any]] = (), **params: Any
    ) -> Sequence[Any]:
        """The rows it gives, if it gives any."""
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
        """Its rows, with these others done that give none: on PostgreSQL all in one round trip.

        There none of them may need to see what another did, nor change what another changes.
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
        for one, call in zip(made, every, strict=True):
            named = one.bound(call.values, call.params)
            bound += [named[name] for name in one.names]
        return await tx.fetch(sql, bound)

    def made(self, dialect: Dialect, single: bool) -> _Made:
        found = self._made.get((dialect, single))
        if found is None:
            found = self._made[dialect, single] = self._make(dialect, single)
        return found

    def _make(self, dialect: Dialect, single: bool) -> _Made:
        sql = self._sql
        if dialect == "sqlite":
            sql = _LOCKING.sub("", sql).replace("string_agg(", "group_concat(")
            sql = _EXACTLY.sub(r"printf('%!.17g', \1)", sql)
        else:
            sql = _EXACTLY.sub(r"CAST(\1 AS text)", sql)
        n = rows(dialect, "n", **self._columns) if self._columns else None
        if n is not None:
            sql = sql.replace("{n}", n.single if single else str(n))
        names = tuple(dict.fromkeys(_NAMED.findall(sql)))
        alone = sql.replace("{after}", "true").replace("{others}", "")
        return _Made(n, single, sql, text(alone), _numbered(alone, names, 1), names)


@dataclass(frozen=True, slots=True)
class BoundStatement:
    """A statement and what it is called with."""

    statement: Statement
    values: Sequence[Sequence[Any]]
    params: dict[str, Any]

    async def __call__(self, tx: Transaction) -> Sequence[Any]:
        made = self.statement.made(tx.dialect, len(self.values) == 1)
        named = made.bound(self.values, self.params)
        if tx.dialect == "postgresql":
            return await tx.fetch(made.alone, [named[name] for name in made.names])
        result = await tx.execute(made.clause, named)
        return result.all() if result.returns_rows else ()


def _numbered(sql: str, names: Sequence[str], first: int) -> str:
    """In PostgreSQL's own words: values by their numbers."""
    return _NAMED.sub(lambda found: f"${first + names.index(found[1])}", sql)


def _joined(made: Sequence[_Made]) -> str:
    """One statement of many. None of them is done twice, or left out, whatever reads its rows."""
    *others, leading = made
    first, parts = 1, ""
    for nth, one in enumerate(others):
        parts += f"other{nth} AS ({_numbered(one.sql, one.names, first)} RETURNING 1), "
        first += len(one.names)
    done = [f"(SELECT count(*) FROM other{nth})" for nth in range(len(others))]
    sql = _numbered(leading.sql, leading.names, first).replace("{others}", parts)
    return sql.replace("{after}", f"{' + '.join(done) or 0} >= 0")


@cache
def numbers(listed: str | None) -> tuple[int, ...]:
    """What string_agg made of numbers."""
    return tuple(int(one) for one in listed.split(",")) if listed else ()
