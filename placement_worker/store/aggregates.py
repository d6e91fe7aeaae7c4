"""SQL for aggregates: names, metadata and members. Memberships are stored with the providers."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from bus.aggregates import Aggregate
from bus.sql.statement import Statement, Transaction, sql
from placement_worker.store.changes import AGGREGATES_TURN

# Locked by each edit of aggregates, because it must see the zones and names of all earlier edits.
TURN = sql(f"SELECT c.number FROM changes c WHERE c.id = {AGGREGATES_TURN} FOR UPDATE OF c")
_IS_DESCRIBED = "(a.name IS NOT NULL OR a.metadata <> '{}')"
_DESCRIBED = sql(f"SELECT a.uuid, a.name, a.metadata FROM aggregates a WHERE {_IS_DESCRIBED}")
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
OF_ROOTS = sql("""
    SELECT DISTINCT a.uuid FROM {n: uuid str} JOIN resource_providers p ON p.uuid = n.uuid
    JOIN resource_provider_aggregates m ON m.resource_provider_id = p.id
    JOIN aggregates a ON a.id = m.aggregate_id
""")
_SAY = sql("""
    UPDATE aggregates SET name = CAST(:called AS text), metadata = :metadata,
    updated_at = CAST(:now AS double precision) WHERE uuid = :uuid
""")

_metadata = msgspec.json.Decoder(dict[str, str])


@cache
def _find(among: bool) -> Statement:
    return sql(f"""
        SELECT a.uuid, a.name, a.metadata, (SELECT count(*) FROM resource_provider_aggregates m
        JOIN resource_providers p ON p.id = m.resource_provider_id
        WHERE m.aggregate_id = a.id AND p.parent_provider_id IS NULL) AS hosts
        FROM aggregates a {"JOIN {n: uuid str} ON n.uuid = a.uuid" if among else ""} WHERE a.uuid > :after
        AND (CAST(:called AS text) = '' OR a.name = CAST(:called AS text))
        AND ({_IS_DESCRIBED}
        OR EXISTS (SELECT 1 FROM resource_provider_aggregates u WHERE u.aggregate_id = a.id))
        ORDER BY a.uuid LIMIT :most
    """)


async def count(tx: Transaction, uuid: str) -> tuple[int, bool]:
    """Return the number of all aggregates, and whether the one with this id exists."""
    [row] = await _COUNT(tx, uuid=uuid)
    return row["total"], bool(row["stored"])


async def described(tx: Transaction) -> dict[str, Aggregate]:
    return {row["uuid"]: _aggregate(row) for row in await _DESCRIBED(tx)}


async def named_hosts(tx: Transaction, names: Collection[str]) -> dict[str, list[str]]:
    """Return, for each name, the root providers with this host name, provider name or uuid."""
    found: dict[str, list[str]] = {}
    if names:
        for called, root in await _HOSTS(tx, [(name,) for name in dict.fromkeys(names)]):
            found.setdefault(called, []).append(root)
    return found


async def page(
    tx: Transaction, ids: Collection[str] | None, name: str, after: str, most: int
) -> list[tuple[Aggregate, int]]:
    """Return at most `most` aggregates sorted by id, after the id `after`, each with its number of hosts.
    Only aggregates whose id is in `ids` (None: any id) and whose name is `name` ("": any name) are returned.
    """
    values = () if ids is None else [(fromkey,) for fromkey in dict.fromkeys(ids)]
    if ids is not None and not values:
        return []
    rows: Sequence[Any] = await _find(ids is not None)(tx, values, called=name, after=after, most=most)
    return [(_aggregate(row), row["hosts"]) for row in rows]


async def write(tx: Transaction, aggregate: Aggregate, now: float) -> None:
    """Store the name and metadata of an aggregate, or delete them if the aggregate is deleted."""
    if aggregate.gone:
        aggregate = Aggregate(id=aggregate.id)
    metadata = msgspec.json.encode(aggregate.metadata).decode()
    await _SAY(tx, uuid=aggregate.id, called=aggregate.name or None, metadata=metadata, now=now)


def _aggregate(row: Mapping[str, Any]) -> Aggregate:
    return Aggregate(id=row["uuid"], name=row["name"] or "", metadata=_metadata.decode(row["metadata"]))
