"""Reads holder consumers for `berth audit`."""

from dataclasses import dataclass

from bus.sql.database import Database
from bus.sql.statement import Statement

_KEEPERS = Statement(
    """
    SELECT c.uuid, c.generation, c.keeps_for, t.name AS type, c.created_at FROM consumers c
    JOIN consumer_types t ON t.id = c.consumer_type_id
    WHERE t.name IN ('CLEANUP', 'MIGRATION') AND c.keeps_for IS NOT NULL ORDER BY c.uuid
    """
)
_CUSTOM = Statement(
    """
    SELECT c.name, sum(i.used) AS used, sum(i.total) AS total FROM inventories i
    JOIN resource_classes c ON c.id = i.resource_class_id WHERE c.name LIKE 'CUSTOM!_%' ESCAPE '!'
    GROUP BY c.name ORDER BY c.name
    """
)


@dataclass(frozen=True)
class StoredHolder:
    """A consumer that holds the place an instance has left, or may be left in."""

    consumer: str
    generation: int
    build: str
    type: str
    since: float


async def stored_holders(database: Database) -> dict[str, StoredHolder]:
    """Return the holder consumers by name, without those of unknown instances."""
    async with database.read() as tx:
        return {
            row["uuid"]: StoredHolder(
                row["uuid"], row["generation"], row["keeps_for"], row["type"], row["created_at"]
            )
            for row in await _KEEPERS(tx)
        }


async def custom_classes(database: Database) -> dict[str, tuple[int, int]]:
    """Return custom class → (used amount, total amount)."""
    async with database.read() as tx:
        return {row["name"]: (int(row["used"]), int(row["total"])) for row in await _CUSTOM(tx)}
