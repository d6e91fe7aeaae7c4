"""Ids of reservations, groups and moves."""

from bus.claims import ReleaseRequested
from bus.resources import FindAllocations
from features.groups.messages import GroupEditRequested, MakeGroup
from features.groups.store import ServerGroups
from features.moves.messages import SHELVED
from features.reservations.tests.contract.test_reservations import R1, S1, draws, reserve
from features.reservations.tests.contract.test_reservations import hosts as hosts
from placement_worker import Placement
from tests.support.ids import uid
from tests.support.placement_calls import take


async def test_a_query_for_an_id_finds_what_else_has_it(placement: Placement) -> None:
    await reserve(placement)
    await take(placement, draws(2))  # the slot holds nothing any more
    group = MakeGroup(group=uid(3, "9"), name="web", policy="affinity", project="p2")
    await placement.of(ServerGroups).edit(GroupEditRequested(edit=group))
    shelved = ReleaseRequested(consumer=uid(5), generation=None, retire=SHELVED, revivable=True, cell="c1")
    await placement.claims.release_many([shelved])
    ids = (R1, S1, uid(2), uid(3, "9"), uid(5), uid(6))
    found = await placement.lookups.allocations(FindAllocations(consumers=ids, others=True))
    assert [consumer.id for consumer in found.consumers] == [uid(2)]
    assert found.objects == {uid(3, "9"): "p2", R1: "", S1: ""}
    assert found.retired == {uid(5): "c1"}
