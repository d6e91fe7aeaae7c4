"""The audit of server groups."""

from berth.kit import AuditPart
from bus.sql.statement import Transaction
from features.groups import store


async def breaches(tx: Transaction) -> list[str]:
    """Return how the members of server groups violate their groups' policies and topologies."""
    return [
        f"server group {group.uuid} ({group.policy}): {breach}"
        for group in await store.hard(tx)
        for breach in group.breaches()
    ]


PART = AuditPart(breaches)
