"""The base of plans whose moves run in batches, which a search finds anew after each batch."""

import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Generic, TypeVar

from bus.clock import Clock
from bus.errors import UNANSWERED
from bus.resources import FindAllocations
from bus.vocabulary import Id, portions
from features.moves.plans import PlanKind, PlanStep
from features.planning.core.batch_course import BatchStep
from features.planning.messages import BatchedMoves, PlanningGoal
from features.planning.plan_searches import PlanSearches
from scheduler_worker.extension import PlacementQueries

Q = TypeVar("Q")
A = TypeVar("A")
_IDS_AT_ONCE = 500

log = logging.getLogger(__name__)


class BatchedPlans(PlanKind, Generic[Q, A]):
    """Carries out plans in batches. `find` answers the queries of searches."""

    def __init__(
        self,
        find: Callable[[Q], Awaitable[A]],
        placement: PlacementQueries,
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self._find = find
        self._placement = placement
        self._clock = clock
        self._wake = wake
        self.searches = PlanSearches[Q, A](self._found, clock, wake)

    def forget(self, plans: Collection[Id]) -> None:
        """Drop what is known of all plans except the given ones."""
        self.searches.forget(plans)

    @abstractmethod
    def _without(self, problem: Exception) -> A:
        """Return the result of a search that failed."""

    async def _found(self, asked: Q) -> A:
        try:
            return await self._find(asked)
        except (*UNANSWERED, TimeoutError) as problem:
            log.warning("no moves are planned: %s", problem)
            return self._without(problem)
        except Exception as problem:
            log.exception("a search for moves has failed")
            return self._without(problem)

    async def _held(self, goal: BatchedMoves) -> set[Id]:
        """Return the holders that still have capacity on the former hosts of moved instances."""
        steps = (*goal.batch, *goal.back[:1])
        held = set[Id]()
        for some in portions([step.holder for step in steps if step.holder], _IDS_AT_ONCE):
            found = await self._placement.allocations(FindAllocations(consumers=tuple(some)))
            held |= {consumer.id for consumer in found.consumers}
        return held

    @staticmethod
    def _made(step: BatchStep[Any], goal: PlanningGoal, *, code: str, **more: Any) -> PlanStep:
        """Return the step of a plan. `code`: why the goal is not reached, if the plan is over."""
        after: BatchedMoves = step.goal
        total = after.tried + len(after.batch) + len(after.planned)
        counts = {"total": total, "moved": len(after.moved), "stay": after.failed}
        code = code if step.is_over else ""
        return PlanStep(new=step.new, counts=counts, goal=goal, over=step.is_over, code=code, **more)
