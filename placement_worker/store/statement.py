"""SQL as this store writes it: one text for both databases, most of it over a list of rows called `n`."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from sqlalchemy import TextClause, text

from bus.database import Dialect, Transaction
from bus.rows import Rows, rows

_LOCKING = re.compile(r"FOR (NO KEY )?UPDATE OF \w+")
_NO_ROWS: dict[str, Any] = {}


class Statement:
    """A statement; `{n}` in it stands for rows with these columns. SQLite locks as a whole, never rows."""

    def __init__(self, sql: str, **columns: Any) -> None:
        self._sql = sql
        self._columns = columns
        self._made: dict[str, tuple[TextClause, Rows | None]] = {}

    async def __call__(
        self, tx: Transaction, values: Iterable[Sequence[Any]] = (), **params: Any
    ) -> Sequence[Any]:
        """The rows it gives, if it gives any."""
        made = self._made.get(tx.dialect)
        if made is None:
            made = self._made[tx.dialect] = self._make(tx.dialect)
        statement, n = made
        bound = n.bind(values) if n is not None else _NO_ROWS
        result = await tx.execute(statement, {**bound, **params})
        return result.all() if result.returns_rows else ()

    def _make(self, dialect: Dialect) -> tuple[TextClause, Rows | None]:
        sql = self._sql
        if dialect == "sqlite":
            sql = _LOCKING.sub("", sql).replace("string_agg(", "group_concat(")
        if not self._columns:
            return text(sql), None
        n = rows(dialect, "n", **self._columns)
        return text(sql.replace("{n}", str(n))), n


@cache
def numbers(listed: str | None) -> tuple[int, ...]:
    """What string_agg made of numbers."""
    return tuple(int(one) for one in listed.split(",")) if listed else ()
