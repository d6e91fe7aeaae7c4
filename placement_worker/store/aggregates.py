"""SQL for aggregates: names, metadata and members. Memberships are stored with the providers."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from bus.aggregates import Aggregate
from bus.sql.statement import Transaction, sql
from placement_worker.store.changes import AGGREGATES_TURN

# Locked by each edit of aggregates, because it must see the zones and names of all earlier edits.
TURN = sql(f"SELECT c.number FROM changes c WHERE c.id = {AGGREGATES_TURN} FOR UPDATE OF c")
_DESCRIBED = sql("""
    SELECT a.uuid, a.name, a.metadata FROM aggregates a WHERE a.name IS NOT NULL OR a.metadata <> '{}'
""")
KNOWN = sql("SELECT a.uuid FROM aggregates a WHERE a.uuid = :uuid")
_COUNT = sql("""
    SELECT count(*) AS total, count(CASE WHEN a.uuid = CAST(:uuid AS text) THEN 1 END) AS stored
    FROM aggregates a
""")
MEMBERS = sql("""
    SELECT p.uuid, p.name FROM aggregates a
    JOIN resource_provider_aggregates m ON m.aggregate_id = a.id
    JOIN resource_providers p ON p.id = m.resource_provider_id WHERE a.uuid = :uuid
""")
_HOSTS = sql("""
    SELECT n.called, r.uuid FROM {n: called str} JOIN resource_providers r ON r.uuid = n.called
    WHERE r.parent_provider_id IS NULL
    UNION SELECT n.called, r.uuid FROM {n} JOIN resource_providers r ON r.name = n.called
    WHERE r.parent_provider_id IS NULL
    UNION SELECT n.called, r.uuid FROM {n} JOIN hosts h ON h.host = n.called
    JOIN resource_providers r ON r.uuid = h.root
""")
_SAY = sql("""
    UPDATE aggregates SET name = CAST(:called AS text), metadata = :metadata,
    updated_at = CAST(:now AS double precision) WHERE uuid = :uuid
""")

_metadata = msgspec.json.Decoder(dict[str, str])


async def count(tx: Transaction, uuid: str) -> tuple[int, bool]:
    """Return the number of all aggregates, and whether the one with this id exists."""
    [row] = await _COUNT(tx, uuid=uuid)
    return row["total"], bool(row["stored"])


async def described(tx: Transaction) -> dict[str, Aggregate]:
    """Return all aggregates with a name or metadata, by id."""
    return {row["uuid"]: _aggregate(row) for row in await _DESCRIBED(tx)}


async def named_hosts(tx: Transaction, names: Collection[str]) -> dict[str, list[str]]:
    """Return, for each name, the root providers with this host name, provider name or uuid."""
    found: dict[str, list[str]] = {}
    if names:
        for called, root in await _HOSTS(tx, [(name,) for name in dict.fromkeys(names)]):
            found.setdefault(called, []).append(root)
    return found


async def write(tx: Transaction, aggregate: Aggregate, now: float) -> None:
    """Store the name and metadata of an aggregate, or delete them if the aggregate is deleted."""
    if aggregate.gone:
        aggregate = Aggregate(id=aggregate.id)
    metadata = msgspec.json.encode(aggregate.metadata).decode()
    await _SAY(tx, uuid=aggregate.id, called=aggregate.name or None, metadata=metadata, now=now)


def _aggregate(row: Mapping[str, Any]) -> Aggregate:
    return Aggregate(id=row["uuid"], name=row["name"] or "", metadata=_metadata.decode(row["metadata"]))
