"""A request for a move with the id of an earlier one: the same content has the same result, another one is
refused.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from bus.requests import Image
from cell_conductor.extension import AttemptLimits
from features.moves.core.phases import MoveEndedBefore, last_move
from features.moves.core.repeated import content_of
from features.moves.messages import MoveConflict, MoveRequested
from features.moves.tests.support import conductor_moves
from features.moves.tests.support.move_builders import MOVE, a_build_that_stands, a_move
from features.moves.tests.support.moving_clouds import BIG, KEEP, MovingCloud, a_cloud
from tests.support.conductor_builders import a_build_order, a_placed, an_agent_report, step
from tests.support.ids import uid

FIRST = a_move(reply_to="me", note="why")
OTHERS: list[tuple[str, MoveRequested]] = [
    ("kind", a_move(kind="live", note="why")),
    ("build", replace(FIRST, build=uid(8, "a"))),
    ("flavor", replace(FIRST, kind="resize", flavor=BIG)),
    ("image", replace(FIRST, kind="rebuild", image=Image(name="i"))),
    ("wanted_host", replace(FIRST, wanted_host="host-3")),
    ("verify", replace(FIRST, verify=True)),
    ("note", replace(FIRST, note="another")),
    ("ignore_hosts", replace(FIRST, ignore_hosts=("host-3",))),
    ("flavor", replace(FIRST, flavor=BIG)),  # also invalid
]
DELIVERIES: list[dict[str, Any]] = [
    {"reply_to": "you"},
    {"strict": True},
    {"unknown_fields": ("x",)},
    {"cell": "cell1"},
    {"source": "host-1"},
]


async def recorded(cloud: MovingCloud) -> None:
    """Begin the first move, and let its cell record it."""
    placed = await cloud.placed(FIRST)
    cloud.cells.recorded.add(MOVE)
    cloud.cells.contents[MOVE] = placed.content


async def under_way(cloud: MovingCloud) -> None:
    await recorded(cloud)
    cloud.cells.know(a_build_that_stands(2, status="moving", move=MOVE, attempt=2, generation=2))


async def over(cloud: MovingCloud) -> None:
    await recorded(cloud)
    del cloud.placement.held[KEEP]
    cloud.cells.know(a_build_that_stands(2, attempt=2, generation=2))


async def before_another(cloud: MovingCloud) -> None:
    await over(cloud)
    cloud.cells.know(a_build_that_stands(2, move=uid(2, "e"), attempt=3, generation=4))


@pytest.mark.parametrize("state", [under_way, over, before_another])
async def test_other_content_is_refused_after_the_cell_has_recorded_the_move(state: Any) -> None:
    cloud = a_cloud()
    await state(cloud)
    held = {consumer: cloud.placement.roots(consumer) for consumer in cloud.placement.held}
    for field, other in OTHERS:
        refused = await cloud.conflict(replace(other, reply_to="you"))
        assert (refused.move, refused.build, refused.reply_to) == (MOVE, other.build, "you")
        assert content_of(FIRST) in refused.reason and content_of(other) in refused.reason
        if field in ("kind", "build"):
            assert refused.fields == (field,)
    for delivery in DELIVERIES:
        assert await cloud.come_of(replace(FIRST, **delivery)) == []
    assert {consumer: cloud.placement.roots(consumer) for consumer in cloud.placement.held} == held


async def test_other_content_is_refused_after_the_move_was_refused() -> None:
    cloud = a_cloud(hosts=1)
    first = await cloud.refused(FIRST)
    cloud.scheduler, cloud.moves = cloud.another()
    for field, other in OTHERS:
        assert field in (await cloud.conflict(other)).fields
    assert (await cloud.refused(replace(FIRST, strict=True))).reason == first.reason


async def test_a_digest_of_another_release_is_not_compared() -> None:
    cloud = a_cloud()
    await under_way(cloud)
    cloud.cells.contents[MOVE] = "another-release"
    assert await cloud.come_of(OTHERS[0][1]) == []


def test_the_cell_refuses_the_order_of_other_content_that_passed_a_scheduler() -> None:
    """Until the cell has recorded a move, the scheduler publishes the order of a repeated request, too."""
    limits, placed = AttemptLimits(), a_placed(generation=1, hosts=1)
    built = an_agent_report(a_build_order(placed), "built")
    build = step(step(None, placed, 0.0, limits)[0], built, 1.0, limits)[0]
    order = replace(conductor_moves.a_move(), content="aaaaaaaa1111", reply_to="me")
    moving, _ = step(build, order, 2.0, limits)
    again = replace(order, content="aaaaaaaa2222", kind="live", reply_to="you")
    after, (refused,) = step(moving, again, 3.0, limits)
    assert after is moving and isinstance(refused, MoveConflict)
    assert (refused.cell, refused.reply_to, refused.fields) == (order.cell, "you", ("kind",))
    assert not any(isinstance(each, MoveConflict) for each in step(moving, order, 3.0, limits)[1])
    first = last_move(moving)
    assert first is not None
    _, (late,) = step(build, MoveEndedBefore(first, again), 3.0, limits)
    assert isinstance(late, MoveConflict)
