"""Reads the sizes of all instances and of a reservation's slots, for failover headroom."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bus.claims import HOLDER_TYPES, ConsumerClaim
from bus.sql.statement import Transaction, sql
from bus.vocabulary import Allocations
from features.groups.messages import claimed_group, groups_of, topology_claimed
from features.headroom.plan import ApartGroup, HeldSize
from features.reservations.messages import RESERVATION, reserves
from placement_worker.extension import Row

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
_GROUPS = sql("""
    SELECT g.uuid, g.name AS group_name, g.policy, g.max_per_host, g.topology_required
    FROM {n: uuid str} JOIN server_groups g ON g.uuid = n.uuid
""")
_APART = "anti-affinity"
_TOGETHER = "affinity"
_POOLED = "instances with resources of shared pools are not covered"
Held = tuple[list[HeldSize], list[HeldSize], dict[str, ApartGroup]]


async def read(tx: Transaction) -> Sequence[Mapping[str, Any]]:
    """Return a row for each amount that a consumer holds."""
    return await _HELD(tx)


async def of_claims(
    tx: Transaction, claims: Sequence[ConsumerClaim], providers: Mapping[str, Row]
) -> list[Mapping[str, Any]]:
    """Return the rows that `read` would return in addition if the first choice of each claim were claimed.
    `providers`: all providers by id.
    """
    named = groups_of(claims)
    groups = {row["uuid"]: row for row in await _GROUPS(tx, [(group,) for group in sorted(named)])}
    return [
        {
            **_columns_of_group(claim, groups),
            "uuid": claim.consumer,
            "keeps_for": None,
            "type": claim.type,
            "reservation": reserves(claim),
            "provider": provider,
            "root": providers[provider].root if provider in providers else provider,
            "class": name,
            "used": amount,
        }
        for claim in claims
        for provider, amounts in claim.choices[0].allocations.items()
        for name, amount in amounts.items()
    ]


def _columns_of_group(claim: ConsumerClaim, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    columns = dict.fromkeys(("group_uuid", "group_name", "policy", "max_per_host", "topology_required"))
    if (named := claimed_group(claim.parts)) is None:
        return columns
    if (group := known.get(named)) is not None:
        return {**{name: group[name] for name in columns if name != "group_uuid"}, "group_uuid": named}
    if (topology := topology_claimed(claim.parts)) is not None:  # the claim would create this group
        columns |= {"policy": "topology", "topology_required": topology.is_required}
    return {**columns, "group_uuid": named, "group_name": named, "max_per_host": 1}


def sizes(rows: Iterable[Mapping[str, Any]], reservation: str) -> Held:
    """Return all instances, the slots of the reservation, and the anti-affinity groups by uuid. Holder
    consumers are neither instances nor slots, but count in the groups.
    """
    found: dict[str, Allocations] = {}
    first: dict[str, Mapping[str, Any]] = {}
    shared: set[str] = set()  # consumers with allocations in several trees
    groups: dict[str, tuple[str, int]] = {}
    members: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        uuid, root = row["uuid"], row["root"]
        found.setdefault(uuid, {}).setdefault(row["provider"], {})[row["class"]] = row["used"]
        if first.setdefault(uuid, row)["root"] != root:
            shared.add(uuid)
        if row["policy"] == _APART:
            groups[row["group_uuid"]] = row["group_name"], row["max_per_host"]
            members[row["group_uuid"]][root].add(row["keeps_for"] or uuid)
    together = Counter(row["group_uuid"] for row in first.values() if row["keeps_for"] is None)
    instances: list[HeldSize] = []
    slots: list[HeldSize] = []
    for uuid, held in found.items():
        row = first[uuid]
        if row["reservation"] == reservation:
            slots.append(HeldSize(uuid, row["root"], held))
        elif row["type"] not in (*HOLDER_TYPES, RESERVATION):
            why = _POOLED if uuid in shared else _why_not(row, together[row["group_uuid"]])
            group = str(row["group_uuid"]) if row["policy"] == _APART else ""
            instances.append(HeldSize(uuid, row["root"], held, why, group))
    return instances, slots, {id_: ApartGroup(*group, on=members[id_]) for id_, group in groups.items()}


def _why_not(row: Mapping[str, Any], members: int) -> str:
    if row["topology_required"]:
        return "server groups with a required topology are not covered"
    if row["policy"] == _TOGETHER and members > 1:
        return f"server groups with policy {_TOGETHER} and several members cannot leave a lost host"
    return ""
