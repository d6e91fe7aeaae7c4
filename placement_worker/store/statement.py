"""SQL as this store writes it: one text for both databases, most of it over a list of rows called `n`."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import TextClause, text

from bus.database import Dialect, Transaction
from bus.rows import Rows, rows

_LOCKING = re.compile(r"FOR (NO KEY )?UPDATE OF \w+")
_EXACTLY = re.compile(r"EXACTLY\((\w+\.\w+)\)")
_NAMED = re.compile(r"(?<![:\w]):(\w+)")


@dataclass(frozen=True, slots=True)
class _Made:
    """A statement for one database, over one row or a list."""

    n: Rows | None
    clause: TextClause
    sql: str  # in PostgreSQL's own words
    names: tuple[str, ...]  # of its values, in their order there


class Statement:
    """A statement; `{n}` in it stands for rows with these columns. SQLite locks as a whole, never rows.

    EXACTLY(column) is a float as a text that reads as the same float.
    """

    def __init__(self, sql: str, **columns: Any) -> None:
        self._sql = sql
        self._columns = columns
        self._made: dict[tuple[str, bool], _Made] = {}

    async def __call__(
        self, tx: Transaction, values: Iterable[Sequence[Any]] = (), **params: Any
    ) -> Sequence[Any]:
        """The rows it gives, if it gives any."""
        listed = list(values)
        kind = (tx.dialect, len(listed) == 1)
        made = self._made.get(kind)
        if made is None:
            made = self._made[kind] = self._make(*kind)
        if made.n is not None:
            params |= made.n.bind_single(listed[0]) if len(listed) == 1 else made.n.bind(listed)
        if tx.dialect == "postgresql":
            return await tx.fetch(made.sql, [params[name] for name in made.names])
        result = await tx.execute(made.clause, params)
        return result.all() if result.returns_rows else ()

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
        numbered = _NAMED.sub(lambda found: f"${names.index(found[1]) + 1}", sql)
        return _Made(n, text(sql), numbered, names)


@cache
def numbers(listed: str | None) -> tuple[int, ...]:
    """What string_agg made of numbers."""
    return tuple(int(one) for one in listed.split(",")) if listed else ()
