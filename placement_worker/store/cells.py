"""Cells as operators registered them, and how much is in each."""

from collections.abc import Mapping
from typing import Any

from bus.cells import RegisteredCell
from bus.sql.transaction import Transaction
from placement_worker.store.sql import sql

_REGISTERED = sql("SELECT c.name, c.enabled, c.note FROM cells c ORDER BY c.name")
# A statement of its own, so that of two concurrent registrations the second sees the first.
_ENTER = sql("""
    INSERT INTO cells (name, enabled, note, created_at, updated_at)
    VALUES (:cell, true, '', :NOW, :NOW) ON CONFLICT DO NOTHING RETURNING name
""")
LOCK = sql("SELECT c.name, c.enabled, c.note FROM cells c WHERE c.name = :cell FOR UPDATE OF c")
SAVE = sql("UPDATE cells SET enabled = :enabled, note = :note, updated_at = :NOW WHERE name = :cell")
DROP = sql("DELETE FROM cells WHERE name = :cell")
# Cell → number of hosts, without deleted ones that are in use.
HOSTS = sql("""
    SELECT h.cell, count(*) AS hosts FROM hosts h JOIN resource_providers r ON r.uuid = h.root
    WHERE h.cell <> '' AND NOT h.gone GROUP BY h.cell
""")
# Cell → number of consumers with allocations there, including clean-ups.
INSTANCES = sql("""
    SELECT h.cell, count(DISTINCT a.consumer_id) AS instances FROM hosts h
    JOIN resource_providers r ON r.uuid = h.root
    JOIN resource_providers p ON p.root_provider_id = r.id
    JOIN allocations a ON a.resource_provider_id = p.id WHERE h.cell <> '' GROUP BY h.cell
""")
_ROOTS = sql("""
    SELECT h.root FROM hosts h JOIN resource_providers r ON r.uuid = h.root WHERE h.cell = :cell
    AND NOT h.gone ORDER BY h.root
""")


async def registered(tx: Transaction) -> list[RegisteredCell]:
    return [_cell(row) for row in await _REGISTERED(tx)]


async def enter(tx: Transaction, cell: str, now: float) -> tuple[RegisteredCell, bool]:
    """Return a registered cell, locked, and whether this call created its row."""
    new = bool(await _ENTER(tx, cell=cell, now=now))
    [row] = await LOCK(tx, cell=cell)
    return _cell(row), new


async def roots(tx: Transaction, cell: str) -> list[str]:
    return [root for (root,) in await _ROOTS(tx, cell=cell)]


def _cell(row: Mapping[str, Any]) -> RegisteredCell:
    return RegisteredCell(name=row["name"], enabled=bool(row["enabled"]), note=row["note"])
