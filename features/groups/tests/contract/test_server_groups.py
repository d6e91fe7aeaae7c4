"""Server groups on both databases: made, found, dropped, and checked in the transaction of a claim."""

import pytest

from bus.vocabulary import InUse, Taken
from features.groups.messages import (
    DropGroup,
    FindGroups,
    GroupEdited,
    GroupEditRequested,
    GroupPolicy,
    GroupResult,
    MakeGroup,
    ServerGroup,
)
from features.groups.store import ServerGroups
from features.groups.tests.support.group_parts import joining
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_report, on_hosts
from tests.support.placement_calls import must_take, take

GROUP, OTHER = uid(1, "9"), uid(2, "9")
H1, H2, H3 = (uid(number, "a") for number in (1, 2, 3))


@pytest.fixture(autouse=True)
async def hosts(placement: Placement) -> None:
    await placement.reports.report_many([a_report(number) for number in (1, 2, 3)])


async def edit(placement: Placement, group: MakeGroup | DropGroup) -> GroupResult:
    return (await placement.of(ServerGroups).edit(GroupEditRequested(edit=group))).result


async def make(placement: Placement, policy: GroupPolicy = "anti-affinity", most: int = 1) -> None:
    order = MakeGroup(group=GROUP, name="web", policy=policy, max_per_host=most, project="p1")
    assert isinstance(await edit(placement, order), GroupEdited)


async def found(placement: Placement) -> ServerGroup:
    [group] = (await placement.of(ServerGroups).find(FindGroups(ids=(GROUP,)))).groups
    return group


@pytest.mark.parametrize(
    ("order", "taken"),
    [
        (
            MakeGroup(group=OTHER, name="web", policy="affinity", project="p1"),
            Taken(what="name", value="web"),
        ),
        (MakeGroup(group=GROUP, name="db", policy="affinity", project="p1"), Taken(what="id", value=GROUP)),
        (MakeGroup(group=GROUP, name="web", policy="affinity", project="p2"), Taken(what="id", value=GROUP)),
        (MakeGroup(group=OTHER, name="web", policy="affinity", project="p2"), None),
    ],
)
async def test_group_ids_are_unique_and_names_are_unique_in_a_project(
    placement: Placement, order: MakeGroup, taken: Taken | None
) -> None:
    await make(placement)
    result = await edit(placement, order)
    assert result == taken if taken else isinstance(result, GroupEdited)


async def test_a_group_with_members_is_dropped_only_by_force_and_they_stay(placement: Placement) -> None:
    await make(placement)
    await take(placement, a_claim(1, on_hosts(1), parts=joining(GROUP)))
    assert await edit(placement, DropGroup(group=GROUP)) == InUse(what=GROUP, members=(uid(1),))
    assert await edit(placement, DropGroup(group=GROUP, force=True)) == GroupEdited(changed=True)
    assert await edit(placement, DropGroup(group=GROUP)) == GroupEdited()
    assert (await placement.of(ServerGroups).find(FindGroups())).groups == ()
    await make(placement)
    await take(placement, a_claim(2, on_hosts(2), parts=joining(GROUP)))
    await must_take(placement, a_claim(1, on_hosts(2), generation=1))
    assert (await found(placement)).members == {uid(2): (H2,)}
