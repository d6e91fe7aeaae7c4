"""SQL statements that take tables of rows, with the columns written in the text as `{n: id int}`."""

import re

from bus.sql.statement import Statement

# Rows of the table `changes`: growing numbers, and a row that edits of aggregates lock.
LAST_CHANGE, NAMES_EDITION, CLASS_NUMBERS, PROVIDER_NUMBERS, LAST_TOLD, AGGREGATES_TURN = 1, 2, 3, 4, 5, 6

_ROWS = re.compile(r"\{n: ([^}]*)\}")
_TYPES = {"int": int, "float": float, "str": str, "bool": bool}


def sql(text: str) -> Statement:
    """Return the statement of an SQL text: `{n: id int}` is a table of given rows, `:NOW` is `now`."""
    columns = [column.split() for declared in _ROWS.findall(text) for column in declared.split(",")]
    text = _ROWS.sub("{n}", text).replace(":NOW", "CAST(:now AS double precision)")
    return Statement(text, **{name: _TYPES[type_] for name, type_ in columns})
