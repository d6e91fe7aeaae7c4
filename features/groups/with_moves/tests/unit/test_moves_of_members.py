"""Moves of members of server groups."""

from collections.abc import Sequence

from bus.decisions import AlsoAsked
from features.groups.messages import GROUPS, FindGroups, GroupsFound, ServerGroup, claimed_group
from features.groups.tests.support.group_parts import in_group
from features.groups.with_moves.scheduler import GroupsOfMoves
from features.moves.tests.support.move_builders import BUILD, a_move
from features.moves.tests.support.moving_clouds import KEEP, MovingCloud, a_cloud, root, shelved
from tests.support.ids import uid

GROUP = uid(5, "9")


def grouped(
    policy: str, members: dict[str, int], left: dict[str, int] | None = None, *, hosts: int = 4
) -> MovingCloud:
    """Return a cloud with a server group, whose members are on the numbered hosts."""
    group = ServerGroup(
        id=GROUP,
        name="web",
        policy=policy,  # type: ignore[arg-type]
        project="p",
        members={one: (root(host),) for one, host in members.items()},
        left={one: (root(host),) for one, host in (left or {}).items()},
    )
    return a_cloud_with([group], hosts)


def a_cloud_with(groups: Sequence[ServerGroup], hosts: int = 4) -> MovingCloud:
    async def find(question: FindGroups) -> GroupsFound:
        found = [one for one in groups if not question.ids or one.id in question.ids]
        if question.members:
            found = [one for one in found if not one.members.keys().isdisjoint(question.members)]
        return GroupsFound(groups=tuple(found))

    cloud = a_cloud(hosts=hosts, answers={GROUPS: find})
    cloud.moves.lookups.parts_of.append(GroupsOfMoves(find).parts_of)
    return cloud


async def test_group_members_exclude_hosts_but_the_instance_itself_does_not() -> None:
    cloud = grouped("anti-affinity", {BUILD: 1, uid(8, "b"): 2}, {KEEP: 3}, hosts=3)
    placed = await cloud.placed(a_move())
    assert placed.chosen is not None and placed.chosen.root == root(3)
    assert claimed_group(cloud.placement.orders[0].claims[0].parts) is None  # it stays in the group it is in


async def test_a_shelved_instance_rejoins_its_group() -> None:
    cloud = grouped("anti-affinity", {uid(8, "b"): 2, uid(9, "b"): 3, uid(10, "b"): 1})
    shelved(cloud, AlsoAsked(parts=in_group(GROUP)))
    placed = await cloud.placed(a_move(1, "unshelve"))
    assert placed.chosen is not None and placed.chosen.root == root(4)
    [claim] = cloud.placement.orders[0].claims
    assert claimed_group(claim.parts) == GROUP


async def test_a_deleted_group_does_not_prevent_an_unshelve() -> None:
    cloud = a_cloud_with([])
    shelved(cloud, AlsoAsked(parts=in_group(GROUP)))
    await cloud.placed(a_move(1, "unshelve"))
    assert claimed_group(cloud.placement.orders[0].claims[0].parts) is None
