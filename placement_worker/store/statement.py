"""SQL as this store writes it: one text for both databases, most of it over a list of rows called `n`."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from sqlalchemy import TextClause, text

from bus.database import Dialect, Transaction
from bus.rows import Rows, rows

_LOCKING = re.compile(r"FOR (NO KEY )?UPDATE OF \w+")
_EXACTLY = re.compile(r"EXACTLY\((\w+\.\w+)\)")
_NO_ROWS: dict[str, Any] = {}


class Statement:
    """A statement; `{n}` in it stands for rows with these columns. SQLite locks as a whole, never rows.

    EXACTLY(column) is a float as a text that reads as the same float.
    """

    def __init__(self, sql: str, **columns: Any) -> None:
        self._sql = sql
        self._columns = columns
        self._made: dict[tuple[str, bool], tuple[TextClause, Rows | None]] = {}

    async def __call__(
        self, tx: Transaction, values: Iterable[Sequence[Any]] = (), **params: Any
    ) -> Sequence[Any]:
        """The rows it gives, if it gives any."""
        listed = list(values)
        kind = (tx.dialect, len(listed) == 1)
        made = self._made.get(kind)
        if made is None:
            made = self._made[kind] = self._make(*kind)
        statement, n = made
        if n is None:
            bound = _NO_ROWS
        elif len(listed) == 1:
            bound = n.bind_single(listed[0])
        else:
            bound = n.bind(listed)
        result = await tx.execute(statement, {**bound, **params})
        return result.all() if result.returns_rows else ()

    def _make(self, dialect: Dialect, single: bool) -> tuple[TextClause, Rows | None]:
        sql = self._sql
        if dialect == "sqlite":
            sql = _LOCKING.sub("", sql).replace("string_agg(", "group_concat(")
            sql = _EXACTLY.sub(r"printf('%!.17g', \1)", sql)
        else:
            sql = _EXACTLY.sub(r"CAST(\1 AS text)", sql)
        if not self._columns:
            return text(sql), None
        n = rows(dialect, "n", **self._columns)
        return text(sql.replace("{n}", n.single if single else str(n))), n


@cache
def numbers(listed: str | None) -> tuple[int, ...]:
    """What string_agg made of numbers."""
    return tuple(int(one) for one in listed.split(",")) if listed else ()
