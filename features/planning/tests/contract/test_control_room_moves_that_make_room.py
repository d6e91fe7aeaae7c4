"""Moves that make room, on the page of what-if questions."""

from typing import Any

from bus.decisions import Decision
from bus.queries import BuildsFound, DecisionFound
from features.planning.messages import PLAN_ROOM, PlannedStep, RoomPlanned
from features.what_if.messages import WHAT_IF, PlacedThere, WhatIfAnswered
from tests.support.ids import uid
from tests.support.visited_room import a_visited_room

NOTHING: dict[str, Any] = {"builds": BuildsFound(builds=()), "decision": DecisionFound()}


async def test_a_what_if_question_shows_the_moves_that_would_make_room() -> None:
    full = WhatIfAnswered(fits=False, decision=Decision(code="class"))
    step = PlannedStep(
        build=uid(6), name="web-1", kind="live", cell="c1", source=uid(2, "a"), source_host="h2",
        destination=uid(3, "a"), destination_host="h3", amounts={"VCPU": 2},
    )  # fmt: skip
    target = PlacedThere(root=uid(2, "a"), host="h2", cell="c1")
    plan = RoomPlanned(moves=(step,), targets=(target,))
    async with a_visited_room(sent={**NOTHING, WHAT_IF.name: full, PLAN_ROOM.name: plan}) as room:
        asked = await room.page("/what-if?vcpus=4")
        shown = await room.page("/what-if?vcpus=4&moves=1")
    assert 'href="/what-if?vcpus=4&amp;moves=1"' in asked and "web-1" not in asked
    assert "It fits after 1 move, on" in shown and f'<a href="/hosts/{uid(3, "a")}">h3</a>' in shown
    assert f'href="/builds/{uid(6)}">web-1</a>' in shown
    none = RoomPlanned(code="destinations", why="fit nowhere else")
    async with a_visited_room(sent={**NOTHING, WHAT_IF.name: full, PLAN_ROOM.name: none}) as room:
        assert "There is no plan: fit nowhere else" in await room.page("/what-if?vcpus=4&moves=1")
    unproven = RoomPlanned(code="destinations", why="fit nowhere else", unproven="the search ended")
    async with a_visited_room(sent={**NOTHING, WHAT_IF.name: full, PLAN_ROOM.name: unproven}) as room:
        page = await room.page("/what-if?vcpus=4&moves=1")
    assert "There is no plan" not in page and "A plan may exist: the search ended." in page
    moot = WhatIfAnswered(fits=False, decision=Decision(code="quota"))
    async with a_visited_room(sent={**NOTHING, WHAT_IF.name: moot}) as room:
        assert "make room" not in await room.page("/what-if?vcpus=4&moves=1")
