"""Instances of the hosts of a plan are moved, stay with a reason, or are awaited."""

import pytest
from msgspec import structs

from bus.acts import judged
from bus.audit_trail import Operator
from bus.parts import PlanParts
from bus.projects import ProjectsFound
from bus.queries import Instance
from features.moves.core.emptying import RETRY_SECONDS, TIMES, EmptyingStep, next_step
from features.moves.core.plan_moves import MovesOfPlan, StoredMove
from features.moves.messages import (
    EmptiedHost,
    Emptying,
    MoveOfPlan,
    MoveRequested,
    PlanOfMoves,
    PlansFound,
    PlanStands,
    StopPlan,
)
from tests.support.ids import uid

WAITS = f"it waits to be confirmed (`berth move confirm {uid(1)}`)"
ROOT, PLAN, NOW = uid(1, "a"), uid(1, "f"), 1000.0
DRAIN = Emptying(hosts=(EmptiedHost(root=ROOT, host="host-1", cell="c1"),), because="drain")
WINDOW = structs.replace(DRAIN, keeps_on=True)
EVACUATION = structs.replace(DRAIN, kind="evacuate", patient=False)


def there(number: int, status: str = "active") -> Instance:
    return Instance(
        build=uid(number), status=status, cell="c1", host="host-1", project="p", flavor="small", root=ROOT
    )


def move(build: int, result: str = "", code: str = "", ended: float = 0.0, attempt: int = 0) -> StoredMove:
    made = MoveOfPlan(
        move=uid(10 * build + attempt, "e"), build=uid(build), plan=PLAN, root=ROOT, at=1.0,
        ended=ended or (NOW - 1 if result else 0.0), result=result, code=code,
    )  # fmt: skip
    return StoredMove(made, MoveRequested(move=made.move, build=made.build, kind="live", cell="c1"))


def step(
    goal: Emptying, instances: list[Instance], *moves: StoredMove, most: int = 9, opened: bool = False
) -> EmptyingStep:
    return next_step(goal, instances, {ROOT} if opened else (), MovesOfPlan(moves), most, NOW)


OFTEN = [move(1, "x", "status", attempt=number) for number in range(TIMES + 1)]


@pytest.mark.parametrize(
    ("goal", "instances", "moves", "new", "stay", "is_over"),
    [
        (DRAIN, [], [], [], "", True),
        (DRAIN, [there(1)], [], [1], "", False),
        (DRAIN, [there(1)], [move(1)], [], "", False),  # in progress
        (DRAIN, [], [move(1)], [], "", False),  # recorded at its destination, and may return
        (DRAIN, [there(1)], [move(1, "done")], [], "it was moved, and is there again", True),
        (DRAIN, [there(1)], [move(1, "full", "no_host")], [], "[no_host] full", True),
        (DRAIN, [there(1)], [move(1, "error: no disk")], [], "error: no disk", True),
        (DRAIN, [there(1)], [move(1, "is moving", "moving")], [1], "", False),
        (DRAIN, [there(1)], OFTEN, [], "[status] x", True),
        (DRAIN, [there(1, "building")], [], [], "", False),
        (DRAIN, [there(1, "moving")], [], [], "", False),
        (DRAIN, [there(1, "verifying")], [], [], WAITS, True),
        (EVACUATION, [there(1, "deleting")], [], [], "deleting: its cell sees to it", True),
        (EVACUATION, [there(1, "moving")], [], [], "", False),
        (WINDOW, [], [], [], "", False),  # until it is stopped
        (WINDOW, [there(1)], [move(1, "done")], [1], "", False),
        (WINDOW, [there(1)], [move(1, "full", "no_host")], [], "", False),
        (WINDOW, [there(1)], [move(1, "full", "no_host", NOW - RETRY_SECONDS)], [1], "", False),
    ],
)  # fmt: skip
def test_each_instance_is_moved_awaited_or_stays_with_the_reason(
    goal: Emptying,
    instances: list[Instance],
    moves: list[StoredMove],
    new: list[int],
    stay: str,
    is_over: bool,
) -> None:
    found = step(goal, instances, *moves)
    assert [instance.build for instance in found.new] == [uid(number) for number in new]
    assert (dict(found.stay), found.is_over) == ({uid(1): stay} if stay else {}, is_over)


def test_no_more_instances_are_moved_than_permitted() -> None:
    found = step(DRAIN, [there(3), there(1), there(2)], most=2)
    assert [instance.build for instance in found.new] == [uid(1), uid(2)] and not found.is_over
    assert not step(DRAIN, [there(1)], most=0).is_over


def test_instances_of_a_host_that_was_opened_stay() -> None:
    found = step(DRAIN, [there(1), there(2)], move(2), opened=True)
    assert found.stay == {uid(1): "its host is not closed because of drain any more"}
    assert not found.is_over  # the move in progress completes


def test_moved_and_deleted_instances_are_counted() -> None:
    moves = [move(1, "done"), move(2, "gone", "unknown"), move(3), move(4, "full", "no_host")]
    found = step(DRAIN, [there(4)], *moves)
    assert (found.total, found.moved, found.gone, len(found.stay)) == (4, 1, 1, 1)


@pytest.mark.parametrize(("cells", "may"), [(["c1"], True), (["c1", "c2"], False), (["c2"], False)])
def test_an_operator_of_a_cell_may_stop_a_plan_that_empties_only_its_hosts(
    cells: list[str], may: bool
) -> None:
    operator = Operator(name="ann", role="operator", cells=("c1",))
    hosts = tuple(EmptiedHost(root=uid(n, "a"), host=f"h{n}", cell=cell) for n, cell in enumerate(cells))
    plan = PlanOfMoves(id=PLAN, parts=PlanParts(Emptying(hosts=hosts)))
    found = PlansFound(plans=(PlanStands(plan=plan),))
    refused, _ = judged(operator, StopPlan(plan=PLAN), ProjectsFound(), found)
    assert (refused == "") == may
