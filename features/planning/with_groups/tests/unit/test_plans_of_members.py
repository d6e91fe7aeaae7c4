"""Planned moves of members of server groups."""

import pytest
from msgspec import structs

from features.groups.tests.support.group_parts import in_group
from features.groups.with_moves.tests.support.clouds_with_groups import GROUP, grouped
from features.moves.tests.support.move_builders import BUILD, a_build_that_stands, a_move
from features.planning.tests.support.supposing import supposed, where
from features.planning.with_groups.scheduler import GroupsInPlans
from features.what_if.questions import WhatIfs
from tests.support.ids import uid
from tests.support.scheduler_builders import a_request

OTHER = uid(2000, "b")


async def test_planned_moves_of_a_group_respect_its_policy() -> None:
    cloud = grouped("anti-affinity", {BUILD: 1, OTHER: 1}, hosts=3)
    cloud.placement.hold(OTHER, 1)
    cloud.cells.know(a_build_that_stands(1, build=OTHER))
    answers = await supposed(cloud, a_move(), a_move(2, build=OTHER), joint=(GroupsInPlans(),))
    assert {*where(answers)} == {"host2", "host3"}


@pytest.mark.parametrize(
    ("policy", "one_host", "apart", "counts"),
    [
        ("anti-affinity", False, GROUP, [[1]]),
        ("affinity", True, None, []),
        ("soft-anti-affinity", False, None, []),
    ],
)
async def test_the_policy_of_a_group_limits_the_hosts_of_builds(
    policy: str, one_host: bool, apart: str | None, counts: list[list[int]]
) -> None:
    cloud, rules = grouped(policy, {OTHER: 1}, hosts=3), GroupsInPlans()
    request = structs.replace(a_request(instances=2, project="p"), parts=in_group(GROUP))
    [order] = await cloud.scheduler.resolved([request])
    alternative = order.preferred
    assert rules.concerns(alternative)
    assert (rules.on_one_host(alternative), rules.apart(alternative)) == (one_host, apart)
    limits, packed = rules.domains(
        alternative, cloud.scheduler.choosing(WhatIfs(cloud.scheduler).supposing())
    )
    assert [[*limit.there.values()] for limit in limits] == counts
    assert (packed is not None) == one_host
