"""SQL that reads the sizes of all instances and of a reservation's slots, for failover headroom."""

from collections import defaultdict
from collections.abc import Mapping

from bus.claims import HOLDER_TYPES
from bus.reservations import RESERVATION
from bus.sql.statement import sql
from bus.sql.transaction import Transaction
from placement_worker.core.group_places import HARD
from placement_worker.core.headroom import ApartGroup, HeldSize

_HELD = sql("""
    SELECT c.uuid, c.keeps_for, k.name AS type, g.uuid AS group_uuid, g.name AS group_name, g.policy,
    g.max_per_host, g.topology_required, p.uuid AS provider, r.uuid AS root, n.name AS class, a.used,
    s.reservation FROM consumers c
    JOIN allocations a ON a.consumer_id = c.id
    JOIN resource_providers p ON p.id = a.resource_provider_id
    JOIN resource_providers r ON r.id = p.root_provider_id
    JOIN resource_classes n ON n.id = a.resource_class_id
    LEFT JOIN consumer_types k ON k.id = c.consumer_type_id
    LEFT JOIN server_groups g ON g.id = c.group_id
    LEFT JOIN reservation_slots s ON s.uuid = c.uuid ORDER BY c.uuid, p.uuid, n.name
""")
_APART = "anti-affinity"
Held = tuple[list[HeldSize], list[HeldSize], dict[str, ApartGroup]]


async def read(tx: Transaction, reservation: str) -> Held:
    """Return all instances, the slots of the reservation, and the anti-affinity groups by uuid. Holder
    consumers are neither instances nor slots, but count in the groups.
    """
    found: dict[str, list[tuple[str, str, str, int]]] = {}
    first: dict[str, Mapping[str, object]] = {}
    groups: dict[str, tuple[str, int]] = {}
    members: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in await _HELD(tx):
        amounts = found.setdefault(row["uuid"], [])
        amounts.append((row["root"], row["provider"], row["class"], row["used"]))
        first.setdefault(row["uuid"], row)
        if row["policy"] == _APART:
            groups[row["group_uuid"]] = row["group_name"], row["max_per_host"]
            members[row["group_uuid"]][row["root"]].add(row["keeps_for"] or row["uuid"])
    instances: list[HeldSize] = []
    slots: list[HeldSize] = []
    for uuid, amounts in found.items():
        row, size = first[uuid], tuple((name, used) for _, _, name, used in amounts)
        if row["reservation"] == reservation:
            slots.append(HeldSize(uuid, amounts[0][0], size))
        elif row["type"] not in (*HOLDER_TYPES, RESERVATION):
            why = _why_not(row)
            if any(root != provider for root, provider, *_ in amounts):
                why = "instances with resources of several providers are not covered"
            group = str(row["group_uuid"]) if row["policy"] == _APART else ""
            instances.append(HeldSize(uuid, amounts[0][0], size, why, group))
    return instances, slots, {id_: ApartGroup(*group, on=members[id_]) for id_, group in groups.items()}


def _why_not(row: Mapping[str, object]) -> str:
    if row["topology_required"]:
        return "server groups with a required topology are not covered"
    if row["policy"] in HARD and row["policy"] != _APART:
        return f"server groups with policy {row['policy']} are not covered"
    return ""
