"""Reads the providers that claims name, after they were locked: inventories, usage, shapes and
siblings.
"""

from collections.abc import Collection

from bus.reports import EXCLUDES_SIBLINGS
from bus.sql.statement import Transaction, sql
from bus.vocabulary import capacity_of
from placement_worker.core.capacity import ClaimedProvider, Stock
from placement_worker.store.numbered_names import Book

# Executed after all providers are locked: a statement does not see commits made while it waits for a lock.
_CAPACITIES = sql("""
    SELECT p.id, p.uuid, r.uuid AS root, p.shape, p.generation, i.resource_class_id AS class, i.total,
    i.reserved, i.allocation_ratio, i.used, i.min_unit, i.max_unit, i.step_size,
    EXISTS (SELECT 1 FROM {n: provider str, consumer str} JOIN retired_consumers e ON e.uuid = n.consumer)
    AS retired, CASE WHEN p.parent_provider_id IS NOT NULL THEN EXISTS (SELECT 1 FROM
    resource_provider_traits t WHERE t.resource_provider_id = p.id AND t.trait_id = (SELECT id FROM traits
    WHERE name = :excludes)) ELSE false END AS excludes
    FROM {n} JOIN resource_providers p ON p.uuid = n.provider
    JOIN resource_providers r ON r.id = p.root_provider_id
    LEFT JOIN inventories i ON i.resource_provider_id = p.id ORDER BY p.id, i.resource_class_id
""")
_SIBLINGS = sql("""
    SELECT p.uuid, s.uuid AS sibling FROM {n: uuid str} JOIN resource_providers p ON p.uuid = n.uuid
    JOIN resource_providers s ON s.parent_provider_id = p.parent_provider_id AND s.id <> p.id
    JOIN traits m ON m.name = :excludes
    JOIN resource_provider_traits o ON o.resource_provider_id = p.id AND o.trait_id = m.id
    JOIN resource_provider_traits t ON t.resource_provider_id = s.id AND t.trait_id = m.id
""")


async def read_providers(
    tx: Transaction, book: Book, locked: Collection[str], consumers: Collection[str]
) -> tuple[dict[str, ClaimedProvider], bool]:
    """Lock and read the providers of claims and consumers; also return whether one of the consumers is
    retired.
    """
    claimed: dict[str, ClaimedProvider] = {}
    if not locked:
        return claimed, True
    listed = [*((provider_id, None) for provider_id in locked), *((None, consumer) for consumer in consumers)]
    rows = await _CAPACITIES(tx, listed, excludes=EXCLUDES_SIBLINGS)
    names = await book.class_names(tx, {row["class"] for row in rows if row["class"] is not None})
    for row in rows:
        uuid, generation, class_id, used = row["uuid"], row["generation"], row["class"], row["used"]
        provider = claimed.get(uuid)
        if provider is None:
            provider = claimed[uuid] = ClaimedProvider(
                row["id"], uuid, row["root"], row["shape"], generation, generation
            )
        if class_id is not None:
            provider.stocks[names[class_id]] = Stock(
                class_id,
                capacity_of(row["total"], row["reserved"], row["allocation_ratio"]),
                used,
                used,
                row["min_unit"],
                row["max_unit"],
                row["step_size"],
            )
    if exclusive := {row["uuid"] for row in rows if row["excludes"]}:
        for uuid, excluded in (await siblings(tx, exclusive)).items():
            claimed[uuid].excludes = excluded
    return claimed, bool(rows[0]["retired"]) if rows else True


async def siblings(tx: Transaction, providers: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return, for each provider with EXCLUDES_SIBLINGS, the siblings that must be unused if it is claimed."""
    found: dict[str, tuple[str, ...]] = {}
    for uuid, sibling in await _SIBLINGS(tx, [(id_,) for id_ in providers], excludes=EXCLUDES_SIBLINGS):
        found[uuid] = (*found.get(uuid, ()), sibling)
    return found
