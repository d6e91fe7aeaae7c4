"""Consumers with allocations in a tree, read for a report that moves them, and written after the move.

The providers are locked, the consumers are not: a claim that has read such a consumer finds another shape
once it has locked the providers, and starts again (see claims.open_world).
"""

from collections.abc import Iterator, Mapping, Sequence

from bus.claims import KEEPERS
from bus.sql.statement import BoundStatement, Statement
from bus.sql.transaction import Transaction
from placement_worker.core.reshape import MovedHolder, TreeHolder
from placement_worker.core.trees import Tree
from placement_worker.store.numbered_names import Book

_NOW = "CAST(:now AS double precision)"

_CONSUMERS = Statement(
    """
    SELECT DISTINCT a.consumer_id AS id FROM {n} JOIN resource_providers r ON r.uuid = n.uuid
    JOIN resource_providers p ON p.root_provider_id = r.id
    JOIN allocations a ON a.resource_provider_id = p.id
    """,
    uuid=str,
)
_HOLDINGS = Statement(
    """
    SELECT c.id, c.uuid, c.generation, c.client, k.name AS type, p.uuid AS provider, r.uuid AS root,
    a.resource_class_id, a.used FROM {n} JOIN consumers c ON c.id = n.id
    JOIN allocations a ON a.consumer_id = c.id JOIN resource_providers p ON p.id = a.resource_provider_id
    JOIN resource_providers r ON r.id = p.root_provider_id
    LEFT JOIN consumer_types k ON k.id = c.consumer_type_id
    """,
    id=int,
)
_DELETE = Statement(
    """
    DELETE FROM allocations WHERE EXISTS (SELECT 1 FROM {n} WHERE n.consumer = allocations.consumer_id
    AND n.provider = allocations.resource_provider_id AND n.class = allocations.resource_class_id)
    """,
    **{"consumer": int, "provider": int, "class": int},
)
# New providers have numbers only in the database.
_INSERT = Statement(
    f"""
    INSERT INTO allocations
    (consumer_id, resource_provider_id, resource_class_id, used, created_at, updated_at)
    SELECT n.consumer, p.id, n.class, n.used, {_NOW}, {_NOW} FROM {{n}}
    JOIN resource_providers p ON p.uuid = n.provider
    """,
    **{"consumer": int, "provider": str, "class": int, "used": int},
)
# The usage at the move is recorded as permitted, also beyond capacity.
_SET_USED = Statement(
    """
    UPDATE inventories SET used = n.used, used_when_set = CASE WHEN inventories.used_when_set < n.used
    THEN inventories.used_when_set ELSE n.used END
    FROM {n} JOIN resource_providers p ON p.uuid = n.provider
    WHERE inventories.resource_provider_id = p.id AND inventories.resource_class_id = n.class
    """,
    **{"provider": str, "class": int, "used": int},
)


async def read(tx: Transaction, book: Book, root: str) -> list[TreeHolder]:
    """Return the consumers of this tree, whose providers are locked, so its allocations cannot change."""
    found = [(id_,) for (id_,) in await _CONSUMERS(tx, [(root,)])]
    rows = await _HOLDINGS(tx, found) if found else ()
    names = await book.class_names(tx, {row["resource_class_id"] for row in rows})
    holders: dict[int, TreeHolder] = {}
    for row in rows:
        build = not row["client"] and row["type"] not in KEEPERS
        one = holders.setdefault(
            row["id"], TreeHolder(row["id"], row["uuid"], row["generation"], {}, {}, build)
        )
        part = one.held if row["root"] == root else one.beside
        part.setdefault(row["provider"], {})[names[row["resource_class_id"]]] = row["used"]
    return sorted(holders.values(), key=lambda one: one.uuid)


def writes(
    book: Book, before: Tree, after: Tree, moved: Sequence[MovedHolder], now: float
) -> Iterator[BoundStatement]:
    """Yield the statements that store the moved allocations."""
    if not moved:
        return
    ids = {provider.uuid: provider.id for provider in before.providers}
    classes: Mapping[str, int] = book.classes.ids
    gone, come = [], []
    for holder in moved:
        was, now_held = _flat(holder.holder.held), _flat(holder.held)
        id_ = holder.holder.id
        gone += [(id_, ids[at[0]], classes[at[1]]) for at in was if now_held.get(at) != was[at]]
        come += [
            (id_, at[0], classes[at[1]], amount) for at, amount in now_held.items() if was.get(at) != amount
        ]
    used = {provider.uuid: provider.used for provider in before.providers}
    counted = [
        (provider.uuid, classes[name], amount)
        for provider in after.providers
        for name, amount in provider.used.items()
        if used.get(provider.uuid, {}).get(name, 0) != amount
    ]
    yield _DELETE.of(gone)
    yield _INSERT.of(come, now=now)
    yield _SET_USED.of(counted)


def _flat(held: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str], int]:
    return {
        (provider, name): amount for provider, resources in held.items() for name, amount in resources.items()
    }
