"""Makes room for builds as plans of moves: closes the hosts for the builds (targets) to new instances,
carries out the moves, and opens the targets again.

A closed host is disabled with the cause `make_room`. So claims that were prepared before are refused in their
transaction, because the shape of the host has changed. The plan's record names a host before it is closed,
and until it is opened: if a scheduler stops in between, the next one closes or opens it again.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Any

from msgspec import structs

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.vocabulary import Id
from features.moves.core.plan_moves import MovesOfPlan
from features.moves.host_traits import cause_trait, close_host, open_host
from features.moves.messages import PlanOfMoves, PlanStands
from features.moves.plans import MovePlans, PlanStep
from features.planning.batched_plans import BatchedPlans
from features.planning.core.room_course import next_step
from features.planning.messages import PlanningGoal, PlanRoom, RoomGoal, RoomPlanned, room_of
from scheduler_worker.extension import PlacementQueries

CAUSE = "make_room"
TRAIT = cause_trait(CAUSE)
RETRY_SECONDS = 2.0  # before a search after one without a plan
MOST_FIXED = 1000  # instances that could not be moved, before the plan is given up


class RoomMaking(BatchedPlans[PlanRoom, RoomPlanned]):
    """Carries out plans with a RoomGoal."""

    def __init__(
        self,
        find: Callable[[PlanRoom], Awaitable[RoomPlanned]],
        plans: MovePlans,
        placement: PlacementQueries,
        source: CandidateSource,
        clock: Clock,
    ) -> None:
        super().__init__(find, placement, clock, plans.wake)
        self._plans = plans
        self._source = source
        self._targets: dict[Id, set[Id]] = {}  # of each plan; perhaps not stored yet

    def carries_out(self, plan: PlanOfMoves) -> bool:
        return room_of(plan) is not None

    def same(self, plan: PlanOfMoves, other: PlanOfMoves) -> bool:
        """Return whether a running plan makes the same room."""
        return _without_ids(_goal(plan)) == _without_ids(_goal(other))

    async def step(self, stands: PlanStands, memo: dict[str, Any], moves: MovesOfPlan) -> PlanStep:
        plan, goal = stands.plan, _goal(stands.plan)
        if not goal.searches and (why := await self._taken(plan.id, goal)):
            return PlanStep(over=True, code="taken", why=why)
        opened = not goal.opens and not self._are_closed(goal.closed)
        before = await self._edited(goal)
        held = await self._held(before)
        found, now = self.searches.found(plan.id, before.searches), self._clock.now()
        step = next_step(plan, before, moves, held, found, now, opened=opened, stopped=stands.stopping)
        after = step.goal
        if after.plans and not step.is_over:
            pause = RETRY_SECONDS if after.retries else 0.0
            self.searches.begin(plan.id, after.searches, lambda: _rest(after), pause)
        if after != goal:
            self._wake()
        return self._made(step, PlanningGoal(room=after), code=after.code, why=after.why)

    def forget(self, plans: Collection[Id]) -> None:
        """Drop what is known of all plans except the given ones."""
        super().forget(plans)
        self._targets = {id_: self._targets[id_] for id_ in plans if id_ in self._targets}

    def _without(self, problem: Exception) -> RoomPlanned:
        return RoomPlanned(code="changing", why=str(problem))

    async def _taken(self, id_: Id, goal: RoomGoal) -> str:
        """Take the targets for a plan. Return "", or why it is given up: another plan has one."""
        taken = set[Id]()
        for stands in await self._plans.running():
            other = room_of(stands.plan)
            if other is not None and other.searches and stands.plan.id != id_:
                taken.update(target.root for target in other.targets)
        for other_id, roots in self._targets.items():
            if other_id != id_:
                taken |= roots
        if names := [target.host for target in goal.targets if target.root in taken]:
            return f"another plan has closed {', '.join(names)}: try again when it has ended"
        self._targets[id_] = {target.root for target in goal.targets}
        return ""

    def _are_closed(self, roots: Collection[Id]) -> bool:
        """Return whether hosts are still disabled for the plan: an operator may have enabled one."""
        hosts = (host for host in self._source.hosts() if roots and host.uuid in roots)
        return sum(TRAIT in host.traits for host in hosts) == len(roots)

    async def _edited(self, goal: RoomGoal) -> RoomGoal:
        """Close or open hosts as the stored goal says; return the goal with what was done."""
        if goal.opens:
            for root in goal.closing:
                await open_host(self._placement, root, CAUSE)
            return structs.replace(goal, closing=(), closed=())
        for root in goal.closing:
            if root not in goal.closed:
                await close_host(self._placement, root, CAUSE)
        return structs.replace(goal, closed=goal.closing)


def _rest(goal: RoomGoal) -> PlanRoom:
    """Return the query for the rest of a plan, on the same targets."""
    return structs.replace(
        goal.query,
        roots=tuple(target.root for target in goal.targets),
        budget=max(goal.query.budget - len(goal.moved), 0),
        fixed=(*goal.query.fixed, *goal.failed)[:MOST_FIXED],
        via=goal.via,
    )


def _without_ids(goal: RoomGoal) -> tuple[PlanRoom, int, bool, float]:
    request = goal.query.request
    alike = structs.replace(request, request="", instances=(), reply_to="")
    return structs.replace(goal.query, request=alike), len(request.instances), goal.undoes, goal.reserve


def _goal(plan: PlanOfMoves) -> RoomGoal:
    goal = room_of(plan)
    assert goal is not None, plan.id
    return goal
