"""Lets schedulers make room for builds, as a client, and reserves the capacity before hosts are opened."""

import asyncio
from dataclasses import dataclass
from typing import Any

from berth.kit import added, asked_amounts
from bus.clock import Clock
from bus.delivery.recording import RecordingBus
from bus.delivery.runner import Bus
from bus.errors import UNANSWERED, OperationRefused
from bus.messages import BuildRequested
from bus.parts import PlanParts
from bus.vocabulary import MAX_TEXT, cause_of, shortened
from control_room.kit import amounts_text, several
from features.moves.messages import MoveOfPlan, PlanOfMoves, PlanStands
from features.moves.plan_requests import PlanListener, rehearse_plan, start_plan
from features.planning.messages import PLAN_ROOM, PlanningGoal, PlanRoom, RoomGoal, RoomPlanned, room_of
from features.planning.reserving import MODULE, MadeRoom

ANSWER_SECONDS = 60.0  # until a scheduler has planned
RESERVE_SECONDS = 60.0  # in which the client must have reserved the capacity


class RoomListener(PlanListener):
    """Base class of objects that receive the progress of making room; its methods do nothing."""

    def planned(self, plan: RoomPlanned) -> None:
        """Receive each plan before its moves begin, or the answer that there is none."""

    def undoing(self, goal: RoomGoal) -> None:
        """Receive the report that the moves are reverted."""


@dataclass(frozen=True)
class RoomMade:
    """The result of making room: why not all builds fit (empty: they do), and the moves made."""

    goal: RoomGoal
    code: str = ""
    why: str = ""
    reservation: Any = None  # of the feature that reserves capacity; holds the capacity that was made free
    unreserved: str = ""  # why it does not hold all of it


async def plan_room(bus: Bus, asked: PlanRoom) -> RoomPlanned:
    """Ask a scheduler for a plan."""
    return await bus.asker(PLAN_ROOM, timeout=ANSWER_SECONDS)(asked)


def _plan_of(goal: RoomGoal, most: int) -> PlanOfMoves:
    note = cause_of(f"makes room for {_builds(goal.query.request)}")
    return PlanOfMoves(
        id=Clock().uuid(), parts=PlanParts(PlanningGoal(room=goal)), most=most, plan="make_room", note=note
    )


async def suppose_room(bus: RecordingBus, asked: PlanRoom, most: int) -> RoomPlanned:
    """Return the plan that `make_room` would start; raise OperationRefused if the operator may not."""
    plan = await plan_room(bus, asked)
    await rehearse_plan(bus, _plan_of(RoomGoal(query=asked, targets=plan.targets, found=plan), most))
    return plan


async def make_room(
    bus: Bus, asked: PlanRoom, most: int, listener: RoomListener, *, undo: bool = True, reserve: float = 0.0
) -> RoomMade:
    """Let schedulers carry out plans until all builds of the request fit or no plan is left; then they undo
    the moves, if `undo` is set and not all fit. If all fit, reserve their capacity for the project for
    `reserve` seconds, before the hosts are opened.
    """
    plan = await plan_room(bus, asked)
    listener.planned(plan)
    goal = RoomGoal(
        query=asked, undoes=undo, reserve=RESERVE_SECONDS if reserve else 0.0, targets=plan.targets,
        found=plan,
    )  # fmt: skip
    if plan.code or not plan.moves:
        reserved, lacking = await _reserved(bus, goal, reserve) if not plan.code else (None, "")
        return RoomMade(goal, plan.code, plan.why, reserved, lacking)
    followed = await start_plan(bus, _plan_of(goal, most), _Watch(listener))
    reserved, lacking = None, ""
    try:
        stands = await followed.ended(until=_is_held)
        if not stands.ended and (held := room_of(stands.plan)) is not None:
            reserved, lacking = await _reserved(bus, held, reserve)
            await followed.stop()
            stands = await followed.ended()
    except asyncio.CancelledError:
        await asyncio.shield(followed.stop())
        raise
    return RoomMade(room_of(stands.plan) or goal, stands.code, stands.why, reserved, lacking)


def _is_held(stands: PlanStands) -> bool:
    """Return whether all builds fit, and the hosts are kept closed until the capacity is reserved."""
    goal = room_of(stands.plan)
    return goal is not None and goal.held_until > 0 and not goal.opens


class _Watch(PlanListener):
    """Tells a listener also when moves are undone."""

    def __init__(self, listener: RoomListener) -> None:
        self._listener = listener
        self._undoes = False

    def on_move(self, move: MoveOfPlan) -> None:
        self._listener.on_move(move)

    def so_far(self, stands: PlanStands) -> None:
        self._listener.so_far(stands)
        goal = room_of(stands.plan)
        if goal is not None and goal.back and not self._undoes:
            self._undoes = True
            self._listener.undoing(goal)


async def _reserved(bus: Bus, goal: RoomGoal, seconds: float) -> tuple[Any, str]:
    """Reserve the capacity of the builds while the hosts are still closed to other requests, if that is
    wanted. Return the reservation, if it was created, and the reason if it lacks capacity.
    """
    if not seconds:
        return None, ""
    request, targets = goal.query.request, goal.found.targets
    [made_room] = added(MadeRoom, MODULE)
    try:
        reservation, lacking = await made_room.reserve(
            bus,
            request,
            name=f"room-{Clock().uuid()[:8]}",
            purpose=shortened(f"room made for {_builds(request)}", MAX_TEXT),
            seconds=seconds,
            hosts=[target.host for target in targets],
            closed={each.root: each.instances for each in targets if each.root in goal.closed},
        )
    except (OperationRefused, *UNANSWERED) as problem:
        return None, str(problem)
    return reservation, lacking


def _builds(request: BuildRequested) -> str:
    amounts = amounts_text(sorted(asked_amounts(request).items()))
    return f"{several(len(request.instances), 'build')} of flavor {request.flavor.name} ({amounts} in all)"
