"""Statements whose text declares the columns of the given rows."""

import re

from bus.sql.statement import Statement

_ROWS = re.compile(r"\{n: ([^}]*)\}")
_TYPES = {"int": int, "float": float, "str": str, "bool": bool}


def sql(text: str) -> Statement:
    """Return the statement of an SQL text; `{n: id int}` declares the columns of given rows, `:NOW` is the
    time `now`.
    """
    columns = [column.split() for declared in _ROWS.findall(text) for column in declared.split(",")]
    text = _ROWS.sub("{n}", text).replace(":NOW", "CAST(:now AS double precision)")
    return Statement(text, **{name: _TYPES[type_] for name, type_ in columns})
