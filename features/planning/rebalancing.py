"""Carries out rebalancings as plans of moves: once, or as a standing plan until an operator stops it."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from bus.clock import Clock
from bus.vocabulary import Id
from features.moves.core.plan_moves import MovesOfPlan
from features.moves.messages import PlanOfMoves, PlanStands
from features.moves.plans import PlanStep
from features.planning.batched_plans import BatchedPlans
from features.planning.core.balance_course import MOST_FIXED, next_step
from features.planning.core.rebalancing import ImbalanceWatch
from features.planning.messages import (
    BalancePlanned,
    Balancing,
    PlanBalance,
    PlannedStep,
    PlanningGoal,
    balancing_goal,
    balancing_of,
)
from scheduler_worker.extension import PlacementQueries

CALM_SECONDS = 10.0  # between two searches of a standing plan while moves are necessary
QUIET_SECONDS = 30.0  # between two searches while none is
FORGET_SECONDS = 3600.0  # a standing plan forgets the moves that ended so long ago, when it begins anew


@dataclass(eq=False)
class _Watched:
    """The searches of a standing plan after a number of batches, until moves have been necessary for the hold
    time.
    """

    batches: int
    watch: ImbalanceWatch
    count: int = 0
    pause: float = 0.0  # before the next one


class Rebalancing(BatchedPlans[PlanBalance, BalancePlanned]):
    """Carries out plans with the goal Balancing."""

    def __init__(
        self,
        find: Callable[[PlanBalance], Awaitable[BalancePlanned]],
        placement: PlacementQueries,
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        super().__init__(find, placement, clock, wake)
        self._watched: dict[Id, _Watched] = {}

    def carries_out(self, plan: PlanOfMoves) -> bool:
        return balancing_of(plan) is not None

    def same(self, plan: PlanOfMoves, other: PlanOfMoves) -> bool:
        """Return whether both are standing plans: only one runs at a time."""
        return balancing_goal(plan).keeps_on and balancing_goal(other).keeps_on

    async def step(self, stands: PlanStands, memo: dict[str, Any], moves: MovesOfPlan) -> PlanStep:
        plan, goal, stopped = stands.plan, balancing_goal(stands.plan), stands.stopping
        held, planned = await self._held(goal), self._planned(plan.id, goal)
        step = next_step(plan, goal, moves, held, planned, self._clock.now(), stopped=stopped)
        after = step.goal
        if after.plans and not step.is_over:
            self._search(plan.id, after)
        return self._made(
            step,
            PlanningGoal(balance=after),
            forgotten=self._old(moves) if after.plans and not after.tried else (),
            code="stopped" if stopped else "stay" if after.failed else "",
            why=after.why_undone,
        )

    def _old(self, moves: MovesOfPlan) -> Collection[Id]:
        since = self._clock.now() - FORGET_SECONDS
        return [each.move.move for each in moves.stored if 0 < each.move.ended < since]

    def forget(self, plans: Collection[Id]) -> None:
        """Drop what is known of all plans except the given ones."""
        super().forget(plans)
        self._watched = {id_: self._watched[id_] for id_ in plans if id_ in self._watched}

    # The search for moves

    def _search(self, id_: Id, goal: Balancing) -> None:
        """Search for the moves that gain enough after the batches so far, within the rest of the budget.
        Instances that were moved, or could not be moved, stay.
        """

        def asked() -> PlanBalance:
            steps = (*goal.undone, *goal.moved)
            stay = dict.fromkeys((*goal.query.fixed, *goal.failed, *(step.build for step in steps)))
            budget = goal.query.budget - goal.tried
            return structs.replace(goal.query, budget=budget, fixed=tuple(stay)[-MOST_FIXED:])

        watched = self._watch(id_, goal)
        self.searches.begin(id_, (goal.batches, watched.count), asked, watched.pause)

    def _watch(self, id_: Id, goal: Balancing) -> _Watched:
        watched = self._watched.get(id_)
        if watched is None or watched.batches != goal.batches:
            watched = self._watched[id_] = _Watched(goal.batches, ImbalanceWatch(goal.hold))
        return watched

    def _without(self, problem: Exception) -> BalancePlanned:
        return BalancePlanned()

    def _planned(self, id_: Id, goal: Balancing) -> Sequence[PlannedStep] | None:
        """Return the result of the search; None if it goes on, or has not been the same for long enough."""
        watched = self._watch(id_, goal)
        answer = self.searches.found(id_, (goal.batches, watched.count))
        found = None if answer is None else answer.moves
        if found is None or not goal.keeps_on or goal.tried:
            return found
        if not watched.watch.is_due(self._clock.monotonic(), bool(found)):
            watched.count += 1
            watched.pause = CALM_SECONDS if found else QUIET_SECONDS
            return None
        return found
