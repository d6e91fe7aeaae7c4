"""Many rows of values as a table inside one statement, on both databases.

    n = rows(tx.dialect, "n", id=str, delta=int)
    statement = text(f"UPDATE things SET used = used + n.delta, at = :now FROM {n} WHERE things.id = n.id")
    await tx.execute(statement, {**n.bind([("a", 3), ("b", -1)]), "now": now})

An UPDATE must not find two rows for one target: which of them counts is not defined.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Literal, NewType

import msgspec

Json = NewType("Json", object)  # a JSON column: any value that msgspec can encode; None is NULL

_POSTGRESQL = {int: "bigint", float: "double precision", str: "text", bool: "boolean", Json: "json"}
# What json_extract gives needs no cast: whole numbers, text, 1 and 0; a float without a fraction does.
_SQLITE = {int: "{}", float: "CAST({} AS REAL)", str: "{}", bool: "{}", Json: "{}"}

_encode = msgspec.json.Encoder().encode


class Rows:
    """The fragment for a FROM (as a string), and its parameters for a list of tuples."""

    def __init__(self, dialect: Literal["postgresql", "sqlite"], name: str, columns: dict[str, Any]) -> None:
        unknown = [str(kind) for kind in columns.values() if kind not in _POSTGRESQL]
        if unknown or not columns or not all(word.isidentifier() for word in (name, *columns)):
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
        """Return the parameters for the rows, each a sequence in the order of the columns."""
        listed = list(values)
        if self._json:
            listed = [self._with_json(row) for row in listed]
        if not self._postgresql:
            return {self._keys[0]: _encode(listed).decode()}
        if not listed:
            return {key: [] for key in self._keys}
        return dict(zip(self._keys, map(list, zip(*listed, strict=True)), strict=True))

    def bind_single(self, row: Sequence[Any]) -> dict[str, Any]:
        """Return the parameters for exactly one row, if the fragment is `single`.

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


@cache
def _rows(dialect: Literal["postgresql", "sqlite"], name: str, columns: tuple[tuple[str, Any], ...]) -> Rows:
    return Rows(dialect, name, dict(columns))


def rows(dialect: Literal["postgresql", "sqlite"], name: str, **columns: Any) -> Rows:
    """Return rows with this name and the columns, each an int, float, str, bool or Json. The result is
    cached.
    """
    return _rows(dialect, name, tuple(columns.items()))
