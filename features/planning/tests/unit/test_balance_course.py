"""The course of a rebalancing: batches, exchanges of two instances, and what is undone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from msgspec import structs

from features.moves.core.plan_moves import MovesOfPlan, StoredMove
from features.moves.messages import PlanOfMoves
from features.planning.core.balance_course import BalanceStep, next_step
from features.planning.core.batch_course import EXCHANGE_UNDONE, ExchangeAct, MoveResult, next_act
from features.planning.messages import BalanceMove, Balancing, PlanBalance
from features.planning.tests.support.planned_steps import a_move
from tests.support.ids import uid


@pytest.mark.parametrize(
    ("first", "second", "undo", "act", "unreleased"),
    [
        ("none", "none", "none", "first", "first"),
        ("in progress", "none", "none", "wait", "wait"),
        ("failed", "none", "none", "over", "over"),
        ("done", "none", "none", "second", "wait"),
        ("done", "in progress", "none", "wait", "wait"),
        ("done", "done", "none", "over", "over"),
        ("done", "failed", "none", "undo", "wait"),
        ("done", "failed", "in progress", "wait", "wait"),
        ("done", "failed", "done", "over", "over"),
        ("done", "failed", "failed", "over", "over"),
    ],
)
def test_the_next_act_of_an_exchange_follows_from_the_results_of_its_moves(
    first: MoveResult, second: MoveResult, undo: MoveResult, act: ExchangeAct, unreleased: ExchangeAct
) -> None:
    assert next_act(first, second, undo, single=False, released=True) == act
    assert next_act(first, second, undo, single=False, released=False) == unreleased


@pytest.mark.parametrize(
    ("first", "act"), [("none", "first"), ("in progress", "wait"), ("done", "over"), ("failed", "over")]
)
def test_a_single_move_is_over_when_it_has_ended(first: MoveResult, act: ExchangeAct) -> None:
    assert next_act(first, "none", "none", single=True, released=False) == act


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
    last: BalanceStep | None = None

    @property
    def asked(self) -> list[tuple[int, int]]:
        """Return the requested moves: build and host."""
        return [(_number(each.request.build), _number(each.request.wanted_host)) for each in self.moves]

    def step(self, planned: Sequence[BalanceMove] | None = None) -> list[tuple[int, int]]:
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

    def run(self, find: Callable[[Balancing], Sequence[BalanceMove]] = lambda goal: ()) -> Balancing:
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
    goal = Balancing(query=PlanBalance(budget=budget), planned=tuple([a_move(way) for way in ways]))
    return structs.replace(goal, **facts)


def searching(*ways: tuple[int, int, int]) -> Callable[..., list[BalanceMove]]:
    """Return a search for these moves, without those that were tried."""

    def find(goal: Balancing) -> list[BalanceMove]:
        tried = {step.build for step in (*goal.moved, *goal.undone)} | {*goal.failed}
        left = [way for way in ways if uid(way[0]) not in tried]
        return [a_move(way) for way in left]

    return find


EXCHANGE = a_move((1, 1, 2), (2, 2, 1))


def test_the_second_move_of_an_exchange_waits_until_the_first_instance_has_left() -> None:
    course = CourseOfMoves(Balancing(planned=(EXCHANGE,)), held={uid(1, "b")})
    assert course.step() == [(1, 2)]
    course.end()
    assert course.step() == []
    course.held.clear()
    assert (course.step(), course.step()) == ([(2, 1)], [])
    course.end()
    course.run()
    assert [_number(step.build) for step in course.goal.moved] == [1, 2]
    assert (course.goal.failed, course.goal.undone, len(course.moves)) == ({}, (), 2)


def test_half_of_an_exchange_is_undone() -> None:
    course = CourseOfMoves(Balancing(planned=(EXCHANGE,)), refused=[(2, 1)])
    goal = course.run()
    assert course.asked == [(1, 2), (2, 1), (1, 1)]
    assert [each.request.plan for each in course.moves] == ["rebalance", "rebalance", "undo"]
    assert course.moves[2].request.note == EXCHANGE_UNDONE
    assert ([step.build for step in goal.undone], goal.moved) == ([uid(1)], ())
    assert goal.failed == {uid(2): "refused [no_host]: no host"}


def test_a_half_that_cannot_be_undone_is_named() -> None:
    goal = CourseOfMoves(Balancing(planned=(EXCHANGE,)), refused=[(2, 1), (1, 1)]).run()
    assert goal.failed[uid(1)].startswith("it could not be moved back: refused")
    assert "could not be moved back" in goal.failed[uid(1)]


def test_a_stop_completes_an_exchange_that_has_begun() -> None:
    course = CourseOfMoves(Balancing(planned=(EXCHANGE, a_move((3, 5, 6)))))
    assert course.step() == [(1, 2)]
    course.stopped = True
    course.end()
    assert course.step() == [(2, 1)]
    course.end()
    assert course.step() == [] and course.last is not None and course.last.is_over


def test_a_stop_begins_no_move() -> None:
    course = CourseOfMoves(a_goal((1, 1, 2)), stopped=True)
    assert course.step() == [] and course.last is not None and course.last.is_over


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
