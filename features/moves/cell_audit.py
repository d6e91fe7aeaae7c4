"""The records of moves in the database of a cell that the audit reads."""

from collections.abc import Collection

from berth.kit import CellAuditPart, OperationMark, ReleasedBuild
from bus.sql.statement import Transaction, sql
from features.moves.cell_moves import UNDER_WAY

_MARKS = sql(f"""
    SELECT builds.id, builds.status IN ('moving', 'verifying')
    OR EXISTS (SELECT 1 FROM moves WHERE moves.build = builds.id AND moves.{UNDER_WAY}) AS operating,
    EXISTS (SELECT 1 FROM moves WHERE moves.build = builds.id AND moves.placed LIKE '%"out_of":"_%'
    AND moves.placed NOT LIKE '%"out_of":""%') AS came, builds.status = 'moved' AS gone
    FROM {{n: id str}} JOIN builds ON builds.id = n.id
""")
_SHELVED = sql("""
    SELECT builds.id, builds.attempt, COALESCE(max(moves.ended), 0.0) AS ended FROM builds
    LEFT JOIN moves ON moves.build = builds.id AND moves.kind = 'shelve' AND moves.status = 'ended'
    AND moves.phase = 'done' WHERE builds.status = 'shelved' GROUP BY builds.id, builds.attempt
""")


async def marks(tx: Transaction, builds: Collection[str]) -> dict[str, OperationMark]:
    """Return the marks of the given builds that move, have moved here, or are in another cell."""
    rows = await _MARKS(tx, [(build,) for build in builds])
    return {
        row["id"]: OperationMark(bool(row["operating"]), bool(row["came"]), bool(row["gone"])) for row in rows
    }


async def released(tx: Transaction) -> dict[str, ReleasedBuild]:
    """Return, by build id, the last attempt of each shelved build, and when it was shelved."""
    return {row["id"]: ReleasedBuild(row["attempt"], row["ended"]) for row in await _SHELVED(tx)}


PART = CellAuditPart(marks, released)
