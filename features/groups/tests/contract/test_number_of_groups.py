"""The settings limit the number of server groups."""

from collections.abc import AsyncIterator

import pytest

from berth.kit import Settings
from bus.vocabulary import LimitReached
from features.groups.messages import FindGroups, GroupEditRequested, MakeGroup
from features.groups.store import ServerGroups
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_placement
from tests.support.virtual_time import TurnedClock


@pytest.fixture
async def tiny(url: str, turned: TurnedClock) -> AsyncIterator[Placement]:
    """Yield a placement with small limits."""
    settings = Settings().having(max_groups=3, max_groups_project=2)
    async with a_placement(url, turned.clock, settings) as placement:
        yield placement


async def test_server_groups_are_limited_by_project_and_in_all(tiny: Placement) -> None:
    results = {}
    for number, project in ((1, "p1"), (2, "p1"), (3, "p1"), (4, "p2"), (5, "p3"), (1, "p1")):
        edit = MakeGroup(group=uid(number), name=f"g{number}", policy="affinity", project=project)
        results[number] = (await tiny.of(ServerGroups).edit(GroupEditRequested(edit=edit))).result
    refused = {number: each.setting for number, each in results.items() if isinstance(each, LimitReached)}
    assert refused == {3: "max_groups_project", 5: "max_groups"}
    assert len((await tiny.of(ServerGroups).find(FindGroups())).groups) == 3
