"""Reads the sizes of all instances and of a reservation's slots, for failover headroom."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bus.claims import HOLDER_TYPES, ConsumerClaim
from bus.sql.statement import Transaction, sql
from bus.vocabulary import Allocations, Id
from features.headroom.plan import ApartGroup, HeldSize
from features.reservations.messages import RESERVATION, reserves
from placement_worker.extension import Row

_HELD = sql("""
    SELECT c.uuid, c.keeps_for, k.name AS type, p.uuid AS provider, r.uuid AS root, n.name AS class, a.used,
    s.reservation FROM consumers c
    JOIN allocations a ON a.consumer_id = c.id
    JOIN resource_providers p ON p.id = a.resource_provider_id
    JOIN resource_providers r ON r.id = p.root_provider_id
    JOIN resource_classes n ON n.id = a.resource_class_id
    LEFT JOIN consumer_types k ON k.id = c.consumer_type_id
    LEFT JOIN reservation_slots s ON s.uuid = c.uuid ORDER BY c.uuid, p.uuid, n.name
""")
_POOLED = "instances with resources of shared pools are not covered"
Held = tuple[list[HeldSize], list[HeldSize], dict[str, ApartGroup]]


@dataclass(frozen=True, slots=True)
class JointGroup:
    """A set of instances whose hosts depend on each other, and what that means for evacuations."""

    id: Id
    name: str
    max_per_host: int = 0  # most of its instances on one host; 0: no limit
    why_none: str = ""  # why headroom covers none of its instances
    why_not_several: str = ""  # why headroom covers none of several instances


class JointGroups(Protocol):
    """The groups of a feature that places instances jointly; a join of headroom adds them."""

    async def held(self, tx: Transaction) -> Mapping[Id, JointGroup]:
        """Return the group of each consumer that is in one."""

    async def claimed(self, tx: Transaction, claims: Sequence[ConsumerClaim]) -> Mapping[Id, JointGroup]:
        """Return the group of each consumer that joins one by a claim."""


# Returns the consumers that claims of a feature replace.
ReplacedBy = Callable[[Sequence[ConsumerClaim]], Collection[Id]]


@dataclass(eq=False)
class HeadroomJoins:
    """The groups and replaced instances that joins of headroom add."""

    groups: list[JointGroups] = field(default_factory=list)
    replaced: list[ReplacedBy] = field(default_factory=list)


@dataclass(frozen=True)
class HeldAmounts:
    """The amounts that consumers hold, a row for each, and the group of each consumer that is in one."""

    rows: Sequence[Mapping[str, Any]] = ()
    groups: Mapping[Id, JointGroup] = field(default_factory=dict)

    def with_groups_of(self, claimed: "HeldAmounts") -> "HeldAmounts":
        """Return the amounts that claims hold (`claimed`), with those of the present members of the groups
        that these claims join.
        """
        joined = {group.id for group in claimed.groups.values()}
        members = {id_: group for id_, group in self.groups.items() if group.id in joined}
        rows = [row for row in self.rows if row["uuid"] in members] if members else []
        return HeldAmounts([*rows, *claimed.rows], {**members, **claimed.groups})


async def read(tx: Transaction, joint: Sequence[JointGroups]) -> HeldAmounts:
    """Return the allocations of all consumers, with their server groups."""
    groups: dict[Id, JointGroup] = {}
    for each in joint:
        groups |= await each.held(tx)
    return HeldAmounts(await _HELD(tx), groups)


async def of_claims(
    tx: Transaction,
    claims: Sequence[ConsumerClaim],
    providers: Mapping[str, Row],
    joint: Sequence[JointGroups],
) -> HeldAmounts:
    """Return what `read` would return in addition if the first choice of each claim were claimed.
    `providers`: all providers by id.
    """
    groups: dict[Id, JointGroup] = {}
    for each in joint:
        groups |= await each.claimed(tx, claims)
    rows = [
        {
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
    return HeldAmounts(rows, groups)


def sizes(amounts: HeldAmounts, reservation: str) -> Held:
    """Return all instances, the slots of the reservation, and the groups with a limit per host by id. Holder
    consumers are neither instances nor slots, but count in the groups.
    """
    found: dict[str, Allocations] = {}
    first: dict[str, Mapping[str, Any]] = {}
    shared: set[str] = set()  # consumers with allocations in several trees
    apart: dict[str, JointGroup] = {}
    members: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in amounts.rows:
        uuid, root = row["uuid"], row["root"]
        found.setdefault(uuid, {}).setdefault(row["provider"], {})[row["class"]] = row["used"]
        if first.setdefault(uuid, row)["root"] != root:
            shared.add(uuid)
        if (joined := amounts.groups.get(uuid)) is not None and joined.max_per_host:
            apart[joined.id] = joined
            members[joined.id][root].add(row["keeps_for"] or uuid)
    together = Counter(
        amounts.groups[uuid].id
        for uuid, row in first.items()
        if uuid in amounts.groups and row["keeps_for"] is None
    )
    instances: list[HeldSize] = []
    slots: list[HeldSize] = []
    for uuid, held in found.items():
        row, joined = first[uuid], amounts.groups.get(uuid)
        if row["reservation"] == reservation:
            slots.append(HeldSize(uuid, row["root"], held))
        elif row["type"] not in (*HOLDER_TYPES, RESERVATION):
            why = _why_not(joined, together)
            group = joined.id if joined is not None and joined.max_per_host else ""
            instances.append(HeldSize(uuid, row["root"], held, _POOLED if uuid in shared else why, group))
    groups = {id_: ApartGroup(each.name, each.max_per_host, on=members[id_]) for id_, each in apart.items()}
    return instances, slots, groups


def _why_not(group: JointGroup | None, members: Mapping[str, int]) -> str:
    if group is None:
        return ""
    return group.why_none or (group.why_not_several if members[group.id] > 1 else "")
