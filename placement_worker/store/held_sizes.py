"""SQL that reads the sizes of all instances and of a reservation's slots, for failover headroom."""

from bus.claims import HOLDER_TYPES
from bus.reservations import RESERVATION
from bus.sql.statement import sql
from bus.sql.transaction import Transaction
from placement_worker.core.group_places import HARD
from placement_worker.core.headroom import HeldSize

_HELD = sql("""
    SELECT c.uuid, k.name AS type, g.policy, p.uuid AS provider, r.uuid AS root, n.name AS class, a.used,
    s.reservation FROM consumers c
    JOIN allocations a ON a.consumer_id = c.id
    JOIN resource_providers p ON p.id = a.resource_provider_id
    JOIN resource_providers r ON r.id = p.root_provider_id
    JOIN resource_classes n ON n.id = a.resource_class_id
    LEFT JOIN consumer_types k ON k.id = c.consumer_type_id
    LEFT JOIN server_groups g ON g.id = c.group_id
    LEFT JOIN reservation_slots s ON s.uuid = c.uuid ORDER BY c.uuid, p.uuid, n.name
""")


async def read(tx: Transaction, reservation: str) -> tuple[list[HeldSize], list[HeldSize]]:
    """Return all instances, and the slots of the reservation. Holder consumers are neither."""
    found: dict[str, list[tuple[str, str, str, int]]] = {}
    types: dict[str, tuple[str, str]] = {}
    slots: set[str] = set()
    for row in await _HELD(tx):
        amounts = found.setdefault(row["uuid"], [])
        amounts.append((row["root"], row["provider"], row["class"], row["used"]))
        types[row["uuid"]] = row["type"] or "", row["policy"] or ""
        if row["reservation"] == reservation:
            slots.add(row["uuid"])
    instances: list[HeldSize] = []
    of_reservation: list[HeldSize] = []
    for uuid, amounts in found.items():
        type_, policy = types[uuid]
        size = tuple((name, used) for _, _, name, used in amounts)
        if uuid in slots:
            of_reservation.append(HeldSize(uuid, amounts[0][0], size))
        elif type_ not in (*HOLDER_TYPES, RESERVATION):
            why = f"server groups with policy {policy} are not covered" if policy in HARD else ""
            if any(root != provider for root, provider, *_ in amounts):
                why = "instances with resources of several providers are not covered"
            instances.append(HeldSize(uuid, amounts[0][0], size, why))
    return instances, of_reservation
