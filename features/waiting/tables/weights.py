"""SQL for the weights of projects."""

from bus.sql.statement import Transaction, sql

_ALL = sql("SELECT project, weight FROM weights")
_SET = sql("""
    INSERT INTO weights (project, weight) VALUES (:project, :weight)
    ON CONFLICT (project) DO UPDATE SET weight = excluded.weight
""")
_UNSET = sql("DELETE FROM weights WHERE project = :project")


async def weights(tx: Transaction) -> dict[str, int]:
    """Return the weights by project; the key of the default is ""."""
    return {row["project"]: row["weight"] for row in await _ALL(tx)}


async def replace(tx: Transaction, project: str, weight: int | None) -> bool:
    """Store the weight of a project, or delete it if it is None; return whether it was another one before."""
    before = (await weights(tx)).get(project)
    if weight is None:
        await _UNSET(tx, project=project)
    else:
        await _SET(tx, project=project, weight=weight)
    return before != weight
