"""The control room's operations on moves and drains, with the functions that the commands also use."""

from dataclasses import dataclass
from typing import cast

from berth.kit import causes_of, disabling, enabling, host_named, operations_refused
from bus.delivery.runner import Bus
from bus.errors import UNANSWERED, OperationRefused
from bus.host_health import UNNAMED
from control_room.kit import QUERY_SECONDS, several
from features.moves.messages import FIND_PLANS, STOP_PLAN, Emptying, FindPlans, MoveStands, Steering, StopPlan
from features.moves.moving import MoveListener, steering
from features.moves.plan_requests import PlanListener, emptying_plan, plan_sentence, start_plan

DRAIN = "drain"  # the cause for which drains disable hosts


async def steer(bus: Bus, stands: MoveStands, to: str) -> str:
    """Ask a move's cell to confirm, revert, abort or force the move (`to`); return the move's phase in the
    cell's reply, or a sentence if the cell does not answer. Raise OperationRefused if it refuses.
    """
    with operations_refused():
        async with steering(bus, stands, cast(Steering, to), MoveListener()) as (_, answer):
            steered = answer.result() if answer.done() else None
    if steered is None:
        return f"{to} is requested; cell {stands.cell} has not answered yet"
    if steered.refused:
        raise OperationRefused(steered.refused)
    return steered.phase


@dataclass(frozen=True)
class DrainProgress:
    """The progress of the last plan that drains a host."""

    plan: str
    is_running: bool
    is_done: bool  # it has ended, and no instance stays
    is_alone: bool  # the plan drains no other host
    text: str
    unmoved: tuple[tuple[str, str], ...] = ()  # build, and the reason


class Drains:
    """Starts and stops the plans that drain hosts. Each operation raises OperationRefused if it fails."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def progress(self, root: str) -> DrainProgress | None:
        """Return the progress of the last drain of a host; None if none is known."""
        try:
            found = await self._bus.asker(FIND_PLANS, timeout=QUERY_SECONDS)(FindPlans(root=root, limit=10))
        except UNANSWERED:
            return None
        for stands in found.plans:
            goal = stands.plan.parts.get(Emptying)
            if goal is not None and goal.because == DRAIN:
                text = stands.why if stands.why and not stands.ended else plan_sentence(stands)
                is_alone = len(goal.hosts) == 1
                return DrainProgress(
                    plan=stands.plan.id,
                    is_running=not (stands.ended or stands.stopping),
                    is_done=bool(stands.ended) and not stands.code,
                    is_alone=is_alone,
                    text=text if is_alone else f"{text}, on {several(len(goal.hosts), 'host')} together",
                    unmoved=tuple(sorted(stands.stay.items())),
                )
        return None

    async def start(self, root: str, live: bool, most: int) -> str:
        """Disable a host and begin to move its instances away, `most` at a time; return its new state."""
        with operations_refused():
            host = await host_named(self._bus, root)
            known = await self.progress(host.id)
            if known is not None and known.is_running:
                raise OperationRefused("it is being emptied already")
            state = (await disabling(DRAIN)(self._bus, host)).says
            plan = emptying_plan([host], "live" if live else "migrate", most, because=DRAIN)
            await start_plan(self._bus, plan, PlanListener())
        return state

    async def stop(self, root: str, and_open: bool) -> str:
        """Stop the drain of a host, and return the host's new state. Moves in progress complete. With
        `and_open` the host is enabled unless it has another cause; else it stays disabled.
        """
        with operations_refused():
            host = await host_named(self._bus, root)
            if DRAIN not in causes_of(host):
                raise OperationRefused("It is not being drained: another operator has stopped that.")
            if not and_open:
                await disabling(UNNAMED)(self._bus, host)
                host = await host_named(self._bus, root)
            state = (await enabling(DRAIN)(self._bus, host)).says  # no plan moves further instances of it
            known = await self.progress(host.id)
            if known is not None and known.is_alone:
                await self._bus.asker(STOP_PLAN)(StopPlan(plan=known.plan))
        return state
