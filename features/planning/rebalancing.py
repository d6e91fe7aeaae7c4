"""Carries out rebalancings as plans of moves: once, or as a standing plan until an operator stops it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from bus.clock import Clock
from bus.errors import UNANSWERED
from bus.resources import FindAllocations
from bus.sql.database import Database
from bus.vocabulary import Id, portions
from features.moves.core.plan_moves import MovesOfPlan
from features.moves.messages import FindPlans, PlanOfMoves, PlanStands
from features.moves.plans import MovePlans, PlanKind, PlanStep
from features.planning import store
from features.planning.core.balance_course import MOST_FIXED, next_step, steps_of
from features.planning.core.rebalancing import ImbalanceWatch
from features.planning.messages import (
    BalanceMove,
    BalancePlanned,
    Balancing,
    BalancingSwitched,
    PlanBalance,
    SwitchBalancing,
    goal_of,
)
from scheduler_worker.extension import PlacementQueries

CALM_SECONDS = 10.0  # between two searches of a standing plan while moves are necessary
QUIET_SECONDS = 30.0  # between two searches while none is
FORGET_SECONDS = 3600.0  # a standing plan forgets the moves that ended so long ago, when it begins anew
_IDS_AT_ONCE = 500

log = logging.getLogger(__name__)


class RebalancingSwitch:
    """The stop switch of all rebalancing, which operators set."""

    def __init__(self, database: Database, plans: MovePlans, clock: Clock) -> None:
        self._database = database
        self._plans = plans
        self._clock = clock

    async def answer(self, asked: SwitchBalancing) -> BalancingSwitched:
        if asked.stop is not None:
            async with self._database.write() as tx:
                if asked.stop:
                    await store.stop(tx, self._clock.now())
                else:
                    await store.start(tx)
            self._plans.wake()
        async with self._database.read() as tx:
            since = await store.stopped_since(tx)
        running = [stands.plan for stands in (await self._plans.find(FindPlans())).plans]
        standing = [plan.id for plan in running if (goal := plan.parts.get(Balancing)) and goal.keeps_on]
        return BalancingSwitched(stopped=since is not None, since=since or 0.0, plan=next(iter(standing), ""))

    async def is_set(self) -> bool:
        async with self._database.read() as tx:
            return await store.stopped_since(tx) is not None


@dataclass(eq=False)
class _Search:
    """A search for the moves after a number of batches of a plan. It is repeated in a standing plan until
    moves have been necessary for the hold time.
    """

    batches: int
    watch: ImbalanceWatch
    asked: PlanBalance | None = None  # while it goes on
    found: Sequence[BalanceMove] | None = None
    after: float = 0.0  # when it is repeated


class Rebalancing(PlanKind):
    """Carries out plans with the part Balancing. Searches run in parallel with the steps of other plans."""

    part = Balancing

    def __init__(
        self,
        find: Callable[[PlanBalance], Awaitable[BalancePlanned]],
        switch: RebalancingSwitch,
        placement: PlacementQueries,
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self._find = find
        self._switch = switch
        self._placement = placement
        self._clock = clock
        self._wake = wake
        self._searches: dict[Id, _Search] = {}
        self._waiting = asyncio.Queue[_Search]()

    def same(self, plan: PlanOfMoves, other: PlanOfMoves) -> bool:
        """Return whether both are standing plans: only one runs at a time."""
        return goal_of(plan).keeps_on and goal_of(other).keeps_on

    async def step(self, stands: PlanStands, memo: dict[str, Any], moves: MovesOfPlan) -> PlanStep:
        plan, goal = stands.plan, goal_of(stands.plan)
        stopped = stands.stopping or await self._switch.is_set()
        held = await self._held(goal)
        planned = self._planned(plan.id, goal)
        step = next_step(plan, goal, moves, held, planned, self._clock.now(), stopped=stopped)
        after = step.goal
        if after.plans and not step.is_over:
            self._search(plan.id, after)
        return PlanStep(
            new=step.new,
            counts={
                "total": after.tried + steps_of((*after.batch, *after.planned)),
                "moved": len(after.moved),
                "stay": after.failed,
            },
            goal=after,
            forgotten=self._old(moves) if after.plans and not after.tried else (),
            over=step.is_over,
            code="" if not step.is_over else "stopped" if stopped else "stay" if after.failed else "",
            why=after.why_undone,
        )

    def _old(self, moves: MovesOfPlan) -> Collection[Id]:
        since = self._clock.now() - FORGET_SECONDS
        return [each.move.move for each in moves.stored if 0 < each.move.ended < since]

    def forget(self, plans: Collection[Id]) -> None:
        """Drop the searches of all plans except the given ones."""
        self._searches = {id_: self._searches[id_] for id_ in plans if id_ in self._searches}

    # The search for moves

    def _search(self, id_: Id, goal: Balancing) -> None:
        """Begin to search for the moves that gain enough after the batches so far, within the rest of the
        budget. Instances that were moved, or could not be moved, stay.
        """
        search = self._searches.get(id_)
        if search is None or search.batches != goal.batches:
            search = self._searches[id_] = _Search(goal.batches, ImbalanceWatch(goal.hold))
        if search.asked is None and search.found is None and self._clock.monotonic() >= search.after:
            steps = (*goal.undone, *goal.moved)
            stay = dict.fromkeys((*goal.query.fixed, *goal.failed, *(step.build for step in steps)))
            budget = goal.query.budget - goal.tried
            search.asked = structs.replace(goal.query, budget=budget, fixed=tuple(stay)[-MOST_FIXED:])
            self._waiting.put_nowait(search)

    async def run(self) -> None:
        """Search for moves, one search after the other, until this scheduler stops."""
        while True:
            search = await self._waiting.get()
            if search in self._searches.values() and search.asked is not None:
                search.found = await self._found(search.asked)
                search.asked = None
                self._wake()

    async def _found(self, asked: PlanBalance) -> Sequence[BalanceMove]:
        """Return the moves that gain enough now; none if they are not known."""
        try:
            return (await self._find(asked)).moves
        except (*UNANSWERED, TimeoutError) as problem:
            log.warning("rebalancing: no moves are planned: %s", problem)
        except Exception:
            log.exception("rebalancing: a search for moves has failed")
        return ()

    def _planned(self, id_: Id, goal: Balancing) -> Sequence[BalanceMove] | None:
        """Return the result of the search; None if it goes on, or has not been the same for long enough."""
        search = self._searches.get(id_)
        if search is None or search.batches != goal.batches or search.found is None:
            return None
        found, now = search.found, self._clock.monotonic()
        if goal.keeps_on and not goal.tried and not search.watch.is_due(now, bool(found)):
            search.found, search.after = None, now + (CALM_SECONDS if found else QUIET_SECONDS)
            return None
        return found

    async def _held(self, goal: Balancing) -> set[Id]:
        """Return the holders that still have capacity on the former hosts of moved instances."""
        steps = [*(step for move in goal.batch for step in move.steps), *goal.back[:1]]
        held = set[Id]()
        for some in portions([step.holder for step in steps if step.holder], _IDS_AT_ONCE):
            found = await self._placement.allocations(FindAllocations(consumers=tuple(some)))
            held |= {consumer.id for consumer in found.consumers}
        return held
