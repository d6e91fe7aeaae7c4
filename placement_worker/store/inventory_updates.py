"""SQL that stores reports of changed inventory amounts in one statement, which locks hosts, providers and the
change number in the usual sequence (PostgreSQL only).
"""

from collections.abc import Sequence

import msgspec

from bus.replication import PlacementChanged, ProviderChange
from bus.sql.statement import sql
from bus.sql.transaction import Transaction
from placement_worker.core.inventory_updates import InventoryUpdate
from placement_worker.store.changes import LAST_CHANGE, NAMES_EDITION
from placement_worker.store.numbered_names import Book

# Conditions on a locked row are checked again on its newest version, but subqueries see the snapshot. So a
# host with another sequence than in the snapshot is left out: a concurrent report may have changed anything.
_STORE = sql(f"""
    WITH host AS (
        SELECT n.* FROM {{n: root str, host str, called str, sequence int, generation int, shape int,
        changes bool, inventories Json, classes int, change str}} JOIN hosts h ON h.root = n.root
        WHERE h.sequence < n.sequence AND NOT h.gone AND h.host = n.host
        AND h.sequence = (SELECT s.sequence FROM hosts s WHERE s.root = n.root)
        AND (SELECT number FROM changes WHERE id = {NAMES_EDITION}) = :edition
        ORDER BY h.root FOR NO KEY UPDATE OF h
    ), locked AS (
        SELECT host.*, p.id FROM host JOIN resource_providers p ON p.uuid = host.root
        WHERE p.name = host.called AND p.shape = host.shape
        AND (p.generation = host.generation OR NOT host.changes)
        AND host.classes = (SELECT count(*) FROM inventories i
            JOIN json_to_recordset(host.inventories) AS s(class_id int) ON s.class_id = i.resource_class_id
            WHERE i.resource_provider_id = p.id AND i.reported AND i.withheld = 0)
        AND NOT EXISTS (SELECT 1 FROM resource_providers c WHERE c.root_provider_id = p.id AND c.id <> p.id)
        ORDER BY p.id FOR NO KEY UPDATE OF p
    ), reports AS (
        UPDATE hosts SET sequence = locked.sequence, updated_at = :NOW
        FROM locked WHERE hosts.root = locked.root RETURNING 1
    ), providers AS (
        UPDATE resource_providers SET generation = locked.generation + 1, shape = locked.shape + 1,
        updated_at = :NOW
        FROM locked WHERE resource_providers.id = locked.id AND locked.changes RETURNING 1
    ), stocks AS (
        UPDATE inventories SET total = s.total, reserved = s.reserved, min_unit = s.min_unit,
        max_unit = s.max_unit, step_size = s.step_size, allocation_ratio = s.allocation_ratio,
        used_when_set = inventories.used, updated_at = :NOW
        FROM locked, json_to_recordset(locked.inventories) AS s(class_id int, total int, reserved int,
            min_unit int, max_unit int, step_size int, allocation_ratio double precision)
        WHERE inventories.resource_provider_id = locked.id AND inventories.resource_class_id = s.class_id
        AND locked.changes RETURNING 1
    ), next AS (
        UPDATE changes SET number = number + 1 WHERE id = {LAST_CHANGE}
        AND (SELECT count(*) FROM reports) + (SELECT count(*) FROM stocks) > 0
        AND (SELECT count(*) FROM providers) > 0 RETURNING number
    ), logged AS (
        INSERT INTO change_log (number, changes) SELECT next.number, '[' || (
            SELECT string_agg(locked.change, ',' ORDER BY locked.root) FROM locked WHERE locked.changes
        ) || ']' FROM next
    )
    SELECT locked.root, next.number FROM locked LEFT JOIN next ON true
""")

_encode = msgspec.json.Encoder().encode


async def store(
    tx: Transaction, book: Book, updates: Sequence[InventoryUpdate], now: float
) -> tuple[set[str], PlacementChanged | None]:
    """Store these reports, and log their changes. Return the roots of the reports that were stored, and the
    message to publish if amounts changed. The other reports do not match the database, or are outdated.
    """
    changes = {
        update.after.root: ProviderChange(
            *(update.after.root, update.after.root, update.provider.generation, update.provider.used),
            reshaped=True,
            sequence=update.after.sequence,
        )
        for update in updates
    }
    rows = [
        (
            *(update.after.root, update.after.host, update.provider.name, update.after.sequence),
            *(update.generation, update.shape, update.changes),
            *(_inventories(book, update), len(update.provider.inventories)),
            _encode(changes[update.after.root]).decode(),
        )
        for update in updates
    ]
    found = await _STORE(tx, rows, now=now, edition=book.edition)
    roots = {row["root"] for row in found}
    number = found[0]["number"] if found else None
    if number is None:
        return roots, None
    stored = sorted(update.after.root for update in updates if update.changes and update.after.root in roots)
    changed = tuple([changes[root] for root in stored])
    return roots, PlacementChanged(number=number, changes=changed, history=tx.history)


def _inventories(book: Book, update: InventoryUpdate) -> list[dict[str, float]]:
    return [
        {"class_id": book.classes.ids[name], **msgspec.structs.asdict(inventory)}
        for name, inventory in update.provider.inventories.items()
    ]
