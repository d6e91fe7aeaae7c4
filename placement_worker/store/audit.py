"""Is what is stored sound? Said from SQL alone, for `berth audit`, the tests and the simulation."""

from bus.sql.database import Database
from bus.sql.statement import Statement
from bus.vocabulary import Allocations

_USAGE = Statement(
    "SELECT p.uuid, c.name, i.used, COALESCE(a.used, 0), i.total, i.allocation_ratio FROM inventories i"
    " JOIN resource_providers p ON p.id = i.resource_provider_id"
    " JOIN resource_classes c ON c.id = i.resource_class_id"
    " LEFT JOIN (SELECT resource_provider_id, resource_class_id, CAST(sum(used) AS bigint) AS used"
    " FROM allocations GROUP BY resource_provider_id, resource_class_id) a"
    " ON a.resource_provider_id = i.resource_provider_id AND a.resource_class_id = i.resource_class_id"
    " WHERE i.used <> COALESCE(a.used, 0) OR i.used > i.total * i.allocation_ratio OR i.used < 0"
    " ORDER BY p.uuid, c.name"
)
_ORPHANS = Statement(
    "SELECT a.consumer_id, a.resource_provider_id, a.resource_class_id, c.uuid, i.used FROM allocations a"
    " LEFT JOIN consumers c ON c.id = a.consumer_id"
    " LEFT JOIN inventories i ON i.resource_provider_id = a.resource_provider_id"
    " AND i.resource_class_id = a.resource_class_id"
    " WHERE c.id IS NULL OR i.used IS NULL OR a.used < 1"
)
_CONSUMERS = Statement(
    "SELECT c.uuid, c.generation, EXISTS (SELECT 1 FROM allocations a WHERE a.consumer_id = c.id), r.why,"
    " p.id, u.id, t.id, c.consumer_type_id FROM consumers c LEFT JOIN retired_consumers r ON r.uuid = c.uuid"
    " LEFT JOIN projects p ON p.id = c.project_id LEFT JOIN users u ON u.id = c.user_id"
    " LEFT JOIN consumer_types t ON t.id = c.consumer_type_id"
    " WHERE c.generation < 1 OR r.why IS NOT NULL OR p.id IS NULL OR u.id IS NULL"
    " OR (t.id IS NULL AND c.consumer_type_id IS NOT NULL)"
    " OR NOT EXISTS (SELECT 1 FROM allocations a WHERE a.consumer_id = c.id)"
)
_PROVIDERS = Statement(
    "SELECT p.uuid, p.generation, p.shape, p.root_provider_id, q.root_provider_id FROM resource_providers p"
    " LEFT JOIN resource_providers q ON q.id = p.parent_provider_id"
    " WHERE p.generation < 0 OR p.shape < 0 OR p.root_provider_id IS NULL"
    " OR (p.parent_provider_id IS NULL AND p.root_provider_id <> p.id)"
    " OR (p.parent_provider_id IS NOT NULL AND p.root_provider_id <> q.root_provider_id)"
)
_HOLDINGS = Statement(
    "SELECT c.uuid, c.generation, p.uuid, k.name, a.used, c.created_at FROM consumers c"
    " JOIN allocations a ON a.consumer_id = c.id"
    " JOIN resource_providers p ON p.id = a.resource_provider_id"
    " JOIN resource_classes k ON k.id = a.resource_class_id"
    " ORDER BY c.uuid, p.uuid, a.resource_class_id"
)
_RETIRED = Statement("SELECT uuid FROM retired_consumers")


async def breaches(database: Database) -> list[str]:
    """A sentence for everything that must never be; none when all is well."""
    found = []
    async with database.read() as tx:
        for provider, name, used, allocated, total, ratio in await _USAGE(tx):
            if used != allocated:
                found.append(f"provider {provider}: {used} {name} counted as used, {allocated} allocated")
            if used > total * ratio:
                found.append(f"provider {provider}: overcommitted, {used} {name} used of {total} x {ratio}")
            if used < 0:
                found.append(f"provider {provider}: {used} {name} used")
        for consumer_id, provider_id, class_id, consumer, counted in await _ORPHANS(tx):
            at = f"allocation of class {class_id} on provider {provider_id} to consumer {consumer_id}"
            if consumer is None:
                found.append(f"{at}: there is no such consumer")
            elif counted is None:
                found.append(f"{at}: there is no such inventory")
            else:
                found.append(f"{at}: of nothing")
        for uuid, generation, holds, why, *_ in await _CONSUMERS(tx):
            if generation < 1:
                found.append(f"consumer {uuid}: generation {generation}")
            if not holds:
                found.append(f"consumer {uuid}: holds nothing")
            if why is not None:
                found.append(f"consumer {uuid}: has retired ({why}) and is still there")
            if generation >= 1 and holds and why is None:
                found.append(f"consumer {uuid}: its project, user or type is not known")
        for uuid, generation, shape, *_ in await _PROVIDERS(tx):
            found.append(
                f"provider {uuid}: generation {generation}, shape {shape}, or a root that is not its own"
            )
    return found


async def holdings(database: Database) -> dict[str, tuple[int, Allocations, float]]:
    """Consumer → its generation, what it holds where, and since when."""
    held: dict[str, tuple[int, Allocations, float]] = {}
    async with database.read() as tx:
        for consumer, generation, provider, name, used, since in await _HOLDINGS(tx):
            _, allocations, _ = held.setdefault(consumer, (generation, {}, since))
            allocations.setdefault(provider, {})[name] = used
    return held


async def retired(database: Database) -> set[str]:
    """Those who can never hold again."""
    async with database.read() as tx:
        return {uuid for (uuid,) in await _RETIRED(tx)}
