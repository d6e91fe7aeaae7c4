"""The course of a rebalancing: batches, and what is undone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from features.moves.core.plan_moves import MovesOfPlan, StoredMove
from features.moves.messages import PlanOfMoves
from features.planning.core.balance_course import next_step
from features.planning.core.batch_course import BatchStep
from features.planning.messages import Balancing, PlanBalance, PlannedStep
from features.planning.tests.support.planned_steps import a_step
from tests.support.ids import uid


@dataclass
class CourseOfMoves:
    """A plan whose moves a test ends. `refused`: the moves (build, host) that fail."""

    goal: Balancing
    most: int = 1
    refused: Sequence[tuple[int, int]] = ()
    moves: list[StoredMove] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    now: float = 1000.0
    stopped: bool = False
    last: BatchStep[Balancing] | None = None

    @property
    def asked(self) -> list[tuple[int, int]]:
        """Return the requested moves: build and host."""
        return [(_number(each.request.build), _number(each.request.wanted_host)) for each in self.moves]

    def step(self, planned: Sequence[PlannedStep] | None = None) -> list[tuple[int, int]]:
        """Return the moves that are requested now."""
        plan = PlanOfMoves(id=uid(7), most=self.most, plan="rebalance")
        moves = MovesOfPlan(tuple(self.moves))
        before = len(self.moves)
        self.last = next_step(plan, self.goal, moves, self.held, planned, self.now, stopped=self.stopped)
        self.goal = self.last.goal
        self.moves += self.last.new
        return self.asked[before:]

    def end(self) -> None:
        """End all moves in progress."""
        for at, each in enumerate(self.moves):
            if not each.move.ended:
                failed = self.asked[at] in self.refused
                result, code = ("no host", "no_host") if failed else ("done", "")
                self.moves[at] = replace(
                    each, move=structs.replace(each.move, ended=self.now, result=result, code=code)
                )

    def run(self, find: Callable[[Balancing], Sequence[PlannedStep]] = lambda goal: ()) -> Balancing:
        """Carry the plan out to its end; `find` searches for the rest."""
        for _ in range(50):
            self.step(find(self.goal) if self.goal.plans else None)
            self.end()
            if self.last is not None and self.last.is_over:
                return self.goal
        raise AssertionError(f"the plan does not end: {self.goal}")


def _number(id_: str) -> int:
    return int(id_.rpartition("-")[2], 16)


def a_goal(*ways: tuple[int, int, int], budget: int = 10, **facts: object) -> Balancing:
    goal = Balancing(query=PlanBalance(budget=budget), planned=tuple([a_step(*way) for way in ways]))
    return structs.replace(goal, **facts)


def searching(*ways: tuple[int, int, int]) -> Callable[..., list[PlannedStep]]:
    """Return a search for these moves, without those that were tried."""

    def find(goal: Balancing) -> list[PlannedStep]:
        tried = {step.build for step in (*goal.moved, *goal.undone)} | {*goal.failed}
        left = [way for way in ways if uid(way[0]) not in tried]
        return [a_step(*way) for way in left]

    return find


def test_the_next_batch_begins_when_moved_instances_have_left_their_former_hosts() -> None:
    course = CourseOfMoves(a_goal((1, 1, 2), (2, 2, 1)), held={uid(1, "b")})
    assert course.step() == [(1, 2)]
    course.end()
    assert course.step() == []
    course.held.clear()
    assert course.step() == [] and course.goal.plans
    assert (course.step([a_step(2, 2, 1)]), course.step()) == ([(2, 1)], [])
    course.end()
    course.run()
    assert [_number(step.build) for step in course.goal.moved] == [1, 2]
    assert (course.goal.failed, course.goal.undone, len(course.moves)) == ({}, (), 2)


def test_a_stop_begins_no_move() -> None:
    course = CourseOfMoves(a_goal((1, 1, 2)), stopped=True)
    assert course.step() == [] and course.last is not None and course.last.is_over


def test_a_stop_lets_moves_in_progress_end_and_begins_no_other() -> None:
    course = CourseOfMoves(a_goal((1, 1, 2), (2, 5, 6)))
    assert course.step() == [(1, 2)]
    course.stopped = True
    assert course.step() == [] and course.last is not None and not course.last.is_over
    course.end()
    assert course.step() == [] and course.last.is_over
    assert [_number(step.build) for step in course.goal.moved] == [1]


def test_the_budget_is_not_exceeded() -> None:
    ways = (1, 1, 2), (2, 3, 4), (3, 5, 6)
    course = CourseOfMoves(a_goal(*ways, budget=2))
    course.run(searching(*ways))
    assert course.asked == [(1, 2), (2, 4)]


def test_a_rebalancing_of_which_half_fails_is_undone_once() -> None:
    ways = (1, 1, 2), (2, 3, 4), (3, 5, 6), (4, 7, 8)
    course = CourseOfMoves(a_goal(*ways), refused=[(3, 6), (4, 8), (1, 1)])
    goal = course.run(searching(*ways))
    assert course.asked[4:] == [(2, 3), (1, 1)]  # the last one first
    assert [_number(step.build) for step in goal.undone] == [2]
    assert [_number(step.build) for step in goal.moved] == [1]
    assert "could not be moved back" in goal.failed[uid(1)]
    assert goal.why_undone == "undoes a rebalancing: 2 of its 4 moves failed"
    assert {each.request.note for each in course.moves[4:]} == {goal.why_undone}
