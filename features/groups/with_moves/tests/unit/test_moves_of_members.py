"""Moves of members of server groups."""

from bus.decisions import AlsoAsked
from features.groups.messages import claimed_group
from features.groups.tests.support.group_parts import in_group
from features.groups.with_moves.tests.support.clouds_with_groups import GROUP, a_cloud_with, grouped
from features.moves.tests.support.move_builders import BUILD, a_move
from features.moves.tests.support.moving_clouds import KEEP, root, shelved
from tests.support.ids import uid


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
