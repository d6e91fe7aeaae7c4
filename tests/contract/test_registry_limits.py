"""The settings limit the number of aggregates."""

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from berth.settings import Settings
from bus.aggregates import MakeAggregate
from bus.vocabulary import LimitReached
from placement_worker import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_placement
from tests.support.placement_calls import edit_aggregate
from tests.support.virtual_time import TurnedClock


@pytest.fixture
async def tiny(url: str, turned: TurnedClock) -> AsyncIterator[Placement]:
    """Yield a placement with small limits."""
    settings = Settings().having(max_aggregates=2)
    async with a_placement(url, turned.clock, settings) as placement:
        yield placement


async def test_aggregates_are_limited(tiny: Placement) -> None:
    made = [MakeAggregate(aggregate=uid(number, "9"), name=f"a{number}") for number in (1, 2, 3)]
    results = [await edit_aggregate(tiny, edit) for edit in made]
    assert [isinstance(each, LimitReached) for each in results] == [False, False, True]
    assert not isinstance(await edit_aggregate(tiny, replace(made[0], metadata={"a": "b"})), LimitReached)
