"""Reads the server groups of instances: evacuated members must meet the policies, too."""

from collections.abc import Mapping, Sequence

from bus.claims import ConsumerClaim
from bus.sql.statement import Transaction, sql
from bus.vocabulary import Id
from features.groups.messages import claimed_group, groups_of, topology_claimed
from features.headroom.held_sizes import HeadroomJoins, JointGroup
from placement_worker.extension import ForPlacement, PlacementNeeds, PlacementPart

_HELD = sql("""
    SELECT c.uuid AS consumer, g.uuid, g.name, g.policy, g.max_per_host, g.topology_required
    FROM consumers c JOIN server_groups g ON g.id = c.group_id
""")
_NAMED = sql("""
    SELECT g.uuid, g.name, g.policy, g.max_per_host, g.topology_required
    FROM {n: uuid str} JOIN server_groups g ON g.uuid = n.uuid
""")
_TOGETHER = "affinity"
_UNCOVERED = "server groups with a required topology are not covered"
_INSEPARABLE = f"server groups with policy {_TOGETHER} and several members cannot leave a lost host"


class GroupsOfConsumers:
    """Reads which instances must find hosts together, because they are in one server group."""

    async def held(self, tx: Transaction) -> Mapping[Id, JointGroup]:
        """Return the group of each instance that has allocations."""
        groups: dict[Id, JointGroup] = {}
        rows = await _HELD(tx)
        for row in rows:
            if row["uuid"] not in groups:
                groups[row["uuid"]] = _joint(row)
        return {row["consumer"]: groups[row["uuid"]] for row in rows}

    async def claimed(self, tx: Transaction, claims: Sequence[ConsumerClaim]) -> Mapping[Id, JointGroup]:
        """Return the group of each instance in these claims."""
        named = sorted(groups_of(claims))
        rows = await _NAMED(tx, [(group,) for group in named]) if named else ()
        known, found = {row["uuid"]: _joint(row) for row in rows}, dict[Id, JointGroup]()
        for claim in claims:
            if (group := claimed_group(claim.parts)) is not None:
                found[claim.consumer] = known.get(group) or _made_by(claim, group)
        return found


def _joint(row: Mapping[str, object]) -> JointGroup:
    policy = row["policy"]
    return JointGroup(
        id=str(row["uuid"]),
        name=str(row["name"]),
        max_per_host=int(str(row["max_per_host"])) if policy == "anti-affinity" else 0,
        why_none=_UNCOVERED if row["topology_required"] else "",
        why_not_several=_INSEPARABLE if policy == _TOGETHER else "",
    )


def _made_by(claim: ConsumerClaim, group: Id) -> JointGroup:
    """Return the group that a claim would create, or one without rules if the claim creates none."""
    topology = topology_claimed(claim.parts)
    is_required = topology is not None and topology.is_required
    return JointGroup(id=group, name=group, why_none=_UNCOVERED if is_required else "")


def part(needs: PlacementNeeds, settings: None) -> PlacementPart:
    needs.of(HeadroomJoins).groups.append(GroupsOfConsumers())
    return PlacementPart()


PART = ForPlacement(part)
