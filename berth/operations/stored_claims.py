"""Reads the stored data for `berth audit check` and tests: violated invariants, allocations, holder
consumers.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from bus.aggregates import ZONE
from bus.claims import Retired
from bus.reports import SHARES
from bus.sql.database import Database
from bus.sql.statement import Transaction, sql
from bus.vocabulary import Allocations
from placement_worker.store import hosts

_USAGE = sql("""
    SELECT p.uuid, c.name, i.used, COALESCE(a.used, 0) AS allocated, i.used_when_set,
    i.total, i.reserved, i.allocation_ratio
    FROM inventories i
    JOIN resource_providers p ON p.id = i.resource_provider_id
    JOIN resource_classes c ON c.id = i.resource_class_id
    LEFT JOIN (SELECT resource_provider_id, resource_class_id, CAST(sum(used) AS bigint) AS used
    FROM allocations GROUP BY resource_provider_id, resource_class_id) a
    ON a.resource_provider_id = i.resource_provider_id AND a.resource_class_id = i.resource_class_id
    WHERE i.used <> COALESCE(a.used, 0) OR i.used < 0
    OR (i.used > (i.total - i.reserved) * i.allocation_ratio AND i.used > i.used_when_set)
    ORDER BY p.uuid, c.name
""")
_ORPHANS = sql("""
    SELECT a.consumer_id, a.resource_provider_id, a.resource_class_id, c.uuid, i.used AS counted
    FROM allocations a
    LEFT JOIN consumers c ON c.id = a.consumer_id
    LEFT JOIN inventories i ON i.resource_provider_id = a.resource_provider_id
    AND i.resource_class_id = a.resource_class_id
    WHERE c.id IS NULL OR i.used IS NULL OR a.used < 1
""")
_CONSUMERS = sql("""
    SELECT c.uuid, c.generation, EXISTS (SELECT 1 FROM allocations a WHERE a.consumer_id = c.id) AS holds,
    r.why FROM consumers c LEFT JOIN retired_consumers r ON r.uuid = c.uuid
    LEFT JOIN projects p ON p.id = c.project_id LEFT JOIN users u ON u.id = c.user_id
    LEFT JOIN consumer_types t ON t.id = c.consumer_type_id
    WHERE c.generation < 1 OR r.why IS NOT NULL OR p.id IS NULL OR u.id IS NULL
    OR (t.id IS NULL AND c.consumer_type_id IS NOT NULL)
    OR NOT EXISTS (SELECT 1 FROM allocations a WHERE a.consumer_id = c.id)
""")
_PROVIDERS = sql("""
    SELECT p.uuid, p.generation, p.shape FROM resource_providers p
    LEFT JOIN resource_providers q ON q.id = p.parent_provider_id
    WHERE p.generation < 0 OR p.shape < 0 OR p.root_provider_id IS NULL
    OR (p.parent_provider_id IS NULL AND p.root_provider_id <> p.id)
    OR (p.parent_provider_id IS NOT NULL AND p.root_provider_id <> q.root_provider_id)
""")
# Bare-metal nodes (bus.resources.is_node) of which several consumers hold the reported classes.
_NODES = sql("""
    SELECT p.uuid, count(DISTINCT a.consumer_id) AS holders, min(c.uuid) AS consumer, max(c.uuid) AS other,
    min(h.host) AS host FROM resource_providers p LEFT JOIN hosts h ON h.root = p.uuid
    JOIN inventories i ON i.resource_provider_id = p.id AND i.reported
    JOIN allocations a ON a.resource_provider_id = p.id AND a.resource_class_id = i.resource_class_id
    JOIN consumers c ON c.id = a.consumer_id
    WHERE p.parent_provider_id IS NULL AND p.name = p.uuid
    AND NOT EXISTS (SELECT 1 FROM inventories o JOIN resource_classes n ON n.id = o.resource_class_id
    WHERE o.resource_provider_id = p.id AND o.reported AND (o.total <> 1 OR n.name NOT LIKE 'CUSTOM_%'))
    GROUP BY p.uuid HAVING count(DISTINCT a.consumer_id) > 1 ORDER BY p.uuid
""")
_CONSUMER_TREES = sql("""
    SELECT c.uuid AS consumer, c.generation, t.name AS type, c.client, c.created_at, c.keeps_for,
    r.uuid AS root, p.uuid AS provider, k.name, a.used, h.cell, h.agent, h.created_at AS reported
    FROM consumers c
    JOIN allocations a ON a.consumer_id = c.id
    JOIN resource_providers p ON p.id = a.resource_provider_id
    JOIN resource_providers r ON r.id = p.root_provider_id
    JOIN resource_classes k ON k.id = a.resource_class_id
    LEFT JOIN consumer_types t ON t.id = c.consumer_type_id
    LEFT JOIN hosts h ON h.root = r.uuid AND h.sequence >= 0
    ORDER BY c.uuid, r.uuid, p.uuid, a.resource_class_id
""")
_SERVED = sql("""
    SELECT DISTINCT p.uuid AS provider, r.uuid AS root FROM traits t
    JOIN resource_provider_traits m ON m.trait_id = t.id
    JOIN resource_providers p ON p.id = m.resource_provider_id
    JOIN resource_provider_aggregates a ON a.resource_provider_id = p.id
    JOIN resource_provider_aggregates b ON b.aggregate_id = a.aggregate_id
    JOIN resource_providers q ON q.id = b.resource_provider_id
    JOIN resource_providers r ON r.id = q.root_provider_id WHERE t.name = :shares
""")
_ZONED = sql("""
    SELECT r.uuid, r.name AS root, h.host, h.zone, a.uuid AS aggregate, a.name, a.metadata
    FROM aggregates a
    JOIN resource_provider_aggregates m ON m.aggregate_id = a.id
    JOIN resource_providers r ON r.id = m.resource_provider_id
    LEFT JOIN hosts h ON h.root = r.uuid AND h.sequence >= 0
    WHERE r.parent_provider_id IS NULL AND a.metadata LIKE :zoned
    AND NOT EXISTS (SELECT 1 FROM resource_provider_traits t JOIN traits n ON n.id = t.trait_id
    WHERE t.resource_provider_id = r.id AND n.name = :shares)
    ORDER BY r.uuid, a.uuid
""")
_RETIRED = sql("SELECT uuid FROM retired_consumers")
_AGENTS = sql("SELECT DISTINCT cell, agent FROM hosts WHERE agent <> '' AND NOT gone")


_metadata = msgspec.json.Decoder(dict[str, str])


class ReportedTree(NamedTuple):
    """The cell and agent that own a provider tree; `since` is the time of the first report, in seconds since
    1970.
    """

    cell: str
    agent: str
    since: float


@dataclass(frozen=True)
class TreesOfConsumer:
    """A consumer's allocations, and the owner of each of their trees (None if no agent reports the tree)."""

    type: str | None  # consumer type; None: the consumer was written before consumer types existed
    since: float
    client: bool  # True: claimed by a client of the API, so a cell may have no record of the consumer
    trees: dict[str, ReportedTree | None]
    pools: list[frozenset[str]]  # for each sharing provider: the roots that may use it
    keeps_for: str | None = None  # of a holder consumer: the consumer for which it holds allocations
    generation: int = 0
    allocations: Allocations = field(default_factory=dict)

    def may_be_on(self, root: str) -> bool:
        """Return whether the guest of the consumer could be on this host."""
        return root in self.trees or any(root in roots for roots in self.pools)


async def breaches(tx: Transaction) -> list[str]:
    """Return a sentence for each violated rule of the stored data, for example more usage than capacity."""
    found = []
    for row in await _USAGE(tx):
        at, name, used = f"provider {row['uuid']}", row["name"], row["used"]
        capacity = int((row["total"] - row["reserved"]) * row["allocation_ratio"])
        if used != row["allocated"]:
            found.append(f"{at}: {used} {name} counted as used, {row['allocated']} allocated")
        if used > max(capacity, row["used_when_set"]):  # an edit may set a capacity below the usage
            found.append(f"{at}: oversold, {used} {name} used of {capacity}")
        if used < 0:
            found.append(f"{at}: {used} {name} used")
    for row in await _ORPHANS(tx):
        at = (
            f"allocation of class {row['resource_class_id']} on provider {row['resource_provider_id']}"
            f" to consumer {row['consumer_id']}"
        )
        if row["uuid"] is None:
            found.append(f"{at}: there is no such consumer")
        elif row["counted"] is None:
            found.append(f"{at}: there is no such inventory")
        else:
            found.append(f"{at}: of nothing")
    for row in await _CONSUMERS(tx):
        at, generation = f"consumer {row['uuid']}", row["generation"]
        holds, why = row["holds"], row["why"]
        if generation < 1:
            found.append(f"{at}: generation {generation}")
        if not holds:
            found.append(f"{at}: holds nothing")
        if why is not None:
            found.append(f"{at}: has retired ({why}) and is still there")
        if generation >= 1 and holds and why is None:
            found.append(f"{at}: its project, user or type is not known")
    for row in await _PROVIDERS(tx):
        found.append(
            f"provider {row['uuid']}: generation {row['generation']}, shape {row['shape']},"
            " or a root that is not its own"
        )
    for row in await _NODES(tx):
        both = f"consumers {row['consumer']} and {row['other']}"
        several = (
            f"{row['holders']} consumers hold the node, {both}"
            if row["holders"] > 2
            else f"{both} hold the node"
        )
        is_named = row["host"] not in (None, "", row["uuid"])
        node = f"{row['host']} ({row['uuid']})" if is_named else row["uuid"]
        found.append(f"node {node}: {several}")
    return found


async def allocations(database: Database) -> dict[str, tuple[int, Allocations, float]]:
    """Return each consumer's generation, allocations, and creation time (in seconds since 1970)."""
    held = await trees_of_consumers(database)
    return {
        consumer: (consumer_held.generation, consumer_held.allocations, consumer_held.since)
        for consumer, consumer_held in held.items()
    }


async def trees_of_consumers(database: Database) -> dict[str, TreesOfConsumer]:
    """Return all consumers with allocations, each with the owners of the provider trees that it uses."""
    found: dict[str, TreesOfConsumer] = {}
    served: dict[str, set[str]] = {}
    async with database.read() as tx:
        for provider, root in await _SERVED(tx, shares=SHARES):
            served.setdefault(provider, set()).add(root)
        pools = {provider: frozenset(roots) for provider, roots in served.items()}
        for row in await _CONSUMER_TREES(tx):
            whose = (row["type"], row["created_at"], bool(row["client"]))
            fresh = TreesOfConsumer(*whose, {}, [], row["keeps_for"], row["generation"])
            consumer_held = found.setdefault(row["consumer"], fresh)
            amounts = consumer_held.allocations.setdefault(row["provider"], {})
            reported = row["reported"]
            owner = None if reported is None else ReportedTree(row["cell"], row["agent"], reported)
            consumer_held.trees[row["root"]] = owner
            if row["provider"] in pools and not amounts:
                consumer_held.pools.append(pools[row["provider"]])
            amounts[row["name"]] = row["used"]
    return found


async def in_two_zones(database: Database) -> list[str]:
    """Return a sentence for each host that is in several availability zones; API clients can cause this."""
    zones: dict[str, dict[str, str]] = {}  # host → zone → the reason
    async with database.read() as tx:
        for row in await _ZONED(tx, zoned=f'%"{ZONE}"%', shares=SHARES):
            zone = _metadata.decode(row["metadata"]).get(ZONE)
            found = zones.setdefault(f"host {row['host'] or row['root']} ({row['uuid']})", {})
            if row["zone"]:
                found.setdefault(row["zone"], "what its owner reports")
            if zone:
                found.setdefault(zone, f"aggregate {row['name'] or row['aggregate']}")
    return [
        f"{host}: is in {len(found)} zones: "
        + ", ".join(f"{zone} by {why}" for zone, why in sorted(found.items()))
        for host, found in zones.items()
        if len(found) > 1
    ]


async def registered_cells(database: Database) -> set[str]:
    async with database.read() as tx:
        return {cell.name for cell in await hosts.registered(tx)}


async def agents(database: Database) -> set[tuple[str, str]]:
    """Return the cell and the name of each agent that reports hosts."""
    async with database.read() as tx:
        return {(cell, agent) for cell, agent in await _AGENTS(tx)}


async def retired(database: Database) -> set[str]:
    """Return the ids of all retired consumers."""
    async with database.read() as tx:
        return {uuid for (uuid,) in await _RETIRED(tx)}


async def retired_as(database: Database, consumers: Collection[str]) -> dict[str, Retired]:
    """Return why and how those of the given consumers were retired that were."""
    async with database.read() as tx:
        rows = await _RETIRED_AS(tx, [(consumer,) for consumer in consumers]) if consumers else ()
        return {
            uuid: Retired(why=why, unplaceable=bool(unplaceable), revivable=bool(revivable))
            for uuid, why, unplaceable, revivable in rows
        }


_RETIRED_AS = sql("""
    SELECT r.uuid, r.why, r.unplaceable, r.revivable
    FROM {n: uuid str} JOIN retired_consumers r ON r.uuid = n.uuid
""")
_KEEPERS = sql("""
    SELECT c.uuid, c.generation, c.keeps_for, t.name AS type, c.created_at FROM consumers c
    JOIN consumer_types t ON t.id = c.consumer_type_id
    WHERE t.name IN ('CLEANUP', 'MIGRATION') AND c.keeps_for IS NOT NULL ORDER BY c.uuid
""")
_PLACES_OF_HOLDERS = sql("""
    SELECT DISTINCT c.keeps_for, r.uuid AS root FROM consumers c
    JOIN consumer_types t ON t.id = c.consumer_type_id
    JOIN allocations a ON a.consumer_id = c.id
    JOIN resource_providers p ON p.id = a.resource_provider_id
    JOIN resource_providers r ON r.id = p.root_provider_id
    WHERE t.name IN ('CLEANUP', 'MIGRATION') AND c.keeps_for IS NOT NULL
""")
_CUSTOM = sql("""
    SELECT c.name, sum(i.used) AS used, sum(i.total) AS total FROM inventories i
    JOIN resource_classes c ON c.id = i.resource_class_id WHERE c.name LIKE 'CUSTOM!_%' ESCAPE '!'
    GROUP BY c.name ORDER BY c.name
""")


@dataclass(frozen=True)
class StoredHolder:
    """A stored holder consumer, which has the allocations of a place where a guest may still be."""

    consumer: str
    generation: int
    build: str
    type: str
    since: float


async def stored_holders(database: Database) -> dict[str, StoredHolder]:
    """Return the holder consumers by their uuid, if their record names an instance."""
    async with database.read() as tx:
        return {row["uuid"]: StoredHolder(*row) for row in await _KEEPERS(tx)}


async def places_of_holders(database: Database) -> set[tuple[str, str]]:
    """Return the build of each holder consumer, with the root of each tree that it has allocations on."""
    async with database.read() as tx:
        return {(build, root) for build, root in await _PLACES_OF_HOLDERS(tx)}


async def custom_classes(database: Database) -> dict[str, tuple[int, int]]:
    """Return the used and the total amount of each custom resource class."""
    async with database.read() as tx:
        return {row["name"]: (int(row["used"]), int(row["total"])) for row in await _CUSTOM(tx)}
