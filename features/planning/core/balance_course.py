"""Decides how a rebalancing goes on: which moves are requested or undone, and when to plan again."""

from collections.abc import Collection, Sequence

from msgspec import structs

from bus.vocabulary import Id
from features.moves.core.plan_moves import MovesOfPlan
from features.moves.messages import PlanOfMoves
from features.planning.core.batch_course import BatchCourse, BatchStep
from features.planning.messages import Balancing, PlannedStep

MOST_FIXED = 1000  # instances that a standing plan leaves alone because a move of them failed or was undone


def next_step(
    plan: PlanOfMoves,
    goal: Balancing,
    moves: MovesOfPlan,
    held: Collection[Id],
    planned: Sequence[PlannedStep] | None,
    now: float,
    *,
    stopped: bool,
) -> BatchStep[Balancing]:
    """Return the next step. `held`: holders that still hold capacity on former hosts. `planned`: the result
    of the search for the rest of the moves, if it has ended. `stopped`: begin no further batch or undoing.
    """
    return _Course(plan, goal, moves, held, now).step(planned, stopped)


class _Course(BatchCourse[Balancing]):
    def step(self, planned: Sequence[PlannedStep] | None, stopped: bool) -> BatchStep[Balancing]:
        if self.goal.batch:
            if not self._batch_is_over():
                return self._made()
            self._change(planned=(), plans=self.goal.tried < self.goal.query.budget)
        if self.goal.why_undone:
            return self._undo(stopped)
        if stopped:
            return self._over(stopped)
        if self.goal.plans:
            if planned is None:
                return self._made()
            self._change(planned=tuple(planned), plans=False)
        goal = self.goal
        steps = goal.tried + len(goal.planned)
        if goal.failures and 2 * goal.failures >= steps:
            if not goal.moved:
                return self._over(stopped)
            why = f"undoes a rebalancing: {goal.failures} of its {steps} moves failed"
            self._change(planned=(), why_undone=why, back=goal.moved[::-1])
            return self._undo(stopped)
        if not goal.planned:
            return self._over(stopped)
        self._begin(independent(goal.planned, self._plan.most))
        return self._made()

    def _undo(self, stopped: bool) -> BatchStep[Balancing]:
        return self._over(stopped) if self._all_are_back(stopped=stopped) else self._made()

    def _over(self, stopped: bool) -> BatchStep[Balancing]:
        """End the plan; a standing plan that is not stopped only begins anew."""
        goal = self.goal
        if stopped or not goal.keeps_on:
            return self._made(is_over=True)
        undone = (step.build for step in goal.undone)
        fixed = tuple(dict.fromkeys((*goal.query.fixed, *goal.failed, *undone)))[-MOST_FIXED:]
        self._change(
            query=structs.replace(goal.query, fixed=fixed), plans=True, tried=0, failures=0, moved=(),
            undone=(), failed={}, why_undone="",
        )  # fmt: skip
        return self._made()


def independent(waiting: Sequence[PlannedStep], most: int) -> list[PlannedStep]:
    """Return the first moves of a plan, at most `most`, that have no host in common: they can run at the same
    time.
    """
    hosts, batch = set[str](), list[PlannedStep]()
    for step in waiting[:most]:
        if hosts & {step.source, step.destination}:
            break
        hosts |= {step.source, step.destination}
        batch.append(step)
    return batch
