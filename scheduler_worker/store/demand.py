"""SQL for the usual shapes of requests, which all schedulers count together (core/demand.py)."""

from collections.abc import Mapping

from bus.sql.statement import Transaction, sql
from scheduler_worker.core.demand import MOST_SHAPES

_ADD = sql("""
    INSERT INTO demand (shape, weight) SELECT n.shape, n.weight FROM {n: shape str, weight float} WHERE true
    ON CONFLICT (shape) DO UPDATE SET weight = demand.weight + excluded.weight RETURNING shape
""")
_FIND = sql("SELECT shape, weight FROM demand ORDER BY weight DESC, shape LIMIT :most")
_FORGET = sql("DELETE FROM demand WHERE weight < :least RETURNING shape")


async def add(tx: Transaction, counted: Mapping[str, float]) -> None:
    """Add weights of shapes, by their encoded forms."""
    if counted:
        await _ADD(tx, sorted(counted.items()))


async def find(tx: Transaction) -> dict[str, float]:
    """Return the weights of the most frequent shapes."""
    return {row["shape"]: row["weight"] for row in await _FIND(tx, most=MOST_SHAPES)}


async def forget(tx: Transaction, least: float) -> None:
    """Delete shapes with less than this weight."""
    await _FORGET(tx, least=least)
