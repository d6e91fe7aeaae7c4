"""Makes room for builds of a flavor: plans moves of instances away from the hosts for the builds (targets),
closes the targets to new instances, carries out the moves, and opens the targets again.

The targets are closed for a limited time, which is prolonged while the plan is carried out: if this process
stops, schedulers open them. If a move fails, the rest is planned again with the remaining budget. If no plan
is left, the moved instances are moved back, as far as their former hosts still fit them.
"""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from berth.features import modules
from berth.operations.request_sense import asked_amounts
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import UNANSWERED, OperationRefused, Unavailable, Unroutable
from bus.messages import BuildRequested
from bus.vocabulary import MAX_CAUSE
from control_room.core.words import amounts_text, several
from features.moves.moving import MoveListener, following
from features.planning.messages import HOLD_HOSTS, PLAN_ROOM, HoldHosts, PlannedStep, PlanRoom, RoomPlanned
from features.planning.planned_moves import MovesDone, PlannedMoves

ANSWER_SECONDS = 60.0  # until a scheduler has planned
HOLD_SECONDS = 60.0  # hosts stay closed for this time after the last sign of life
RENEWALS = 4  # within that time
RETRIES = 5  # plans without a result before a plan is given up: a killed agent or conductor is back soon
RETRY_SECONDS = 2.0
MOST_VIA = 1000
MOST_FIXED = 1000  # instances that could not be moved, before the plan is given up


class RoomListener(MoveListener):
    """Base class of objects that receive the progress of making room; its methods do nothing."""

    def planned(self, plan: RoomPlanned) -> None: ...

    def undoing(self, made: "RoomMade") -> None: ...


@dataclass(frozen=True)
class RoomMade:
    """The result of making room: the last plan (its code is "" if all builds fit now) and the moves made."""

    plan: RoomPlanned
    done: MovesDone
    reservation: Any = None  # of the feature that reserves capacity; holds the capacity that was made free
    unreserved: str = ""  # why it does not hold all of it


async def plan_room(bus: Bus, asked: PlanRoom) -> RoomPlanned:
    return await bus.asker(PLAN_ROOM, timeout=ANSWER_SECONDS)(asked)


class MakingRoom:
    """Carries out plans until all builds of the request fit or no plan is left; then undoes the moves, if
    `undo` is set and not all fit. If all fit, their capacity is reserved for the project for `reserve`
    seconds, before the hosts are opened.
    """

    def __init__(
        self,
        bus: Bus,
        asked: PlanRoom,
        most: int,
        listener: RoomListener,
        *,
        undo: bool = True,
        reserve: float = 0.0,
    ) -> None:
        self._bus = bus
        self._asked = asked
        self._most = most
        self._listener = listener
        self._undo = undo
        self._reserve = reserve
        self._hold = HoldHosts(plan=Clock().uuid(), seconds=HOLD_SECONDS)
        self._opened: Collection[str] = ()  # targets that were opened too early
        self._names: dict[str, str] = {}  # of the targets, by root

    @property
    def must_stop(self) -> bool:
        return bool(self._opened)

    async def run(self) -> RoomMade:
        plan = await plan_room(self._bus, self._asked)
        self._listener.planned(plan)
        if plan.code or not plan.moves:
            return await self._reserved(RoomMade(plan, MovesDone()))
        self._names = {target.root: target.host for target in plan.targets}
        try:
            if why := await self._close(plan.moves):
                return RoomMade(structs.replace(plan, code="taken", why=why, moves=()), MovesDone())
            async with (
                following(self._bus, f"room-{self._hold.plan[:8]}", self._listener) as followed,
                asyncio.TaskGroup() as group,
            ):
                renewing = group.create_task(self._renew())
                note = f"makes room for {_builds(self._asked.request)}"
                moves = PlannedMoves(self._bus, followed, self._listener, self._most, "make_room", note)
                made = await self._carry_out(plan, moves)
                renewing.cancel()
                if made.plan.code and made.done.moved and self._undo:
                    await self._open()  # first: a closed host takes nothing back
                    self._listener.undoing(made)
                    await moves.undo(f"undoes a plan to make room: {made.plan.why}")
            return await self._reserved(made)
        finally:
            await self._open()

    async def _reserved(self, result: RoomMade) -> RoomMade:
        """If all builds fit and a reservation is wanted, reserve their capacity while the hosts are still
        closed to other requests. Return a copy of `result` with the reservation, if it was created, and the
        reason if it lacks capacity. In all other cases return `result` unchanged.
        """
        if result.plan.code or not self._reserve:
            return result
        request, targets = self._asked.request, result.plan.targets
        [made_room] = modules("made_room")
        try:
            reservation, lacking = await made_room.reserve(
                self._bus,
                request,
                name=f"room-{self._hold.plan[:8]}",
                purpose=f"room made for {_builds(request)}"[:MAX_CAUSE],
                seconds=self._reserve,
                hosts=[target.host for target in targets],
                closed={each.root: each.instances for each in targets if each.root in self._hold.roots},
            )
        except (OperationRefused, *UNANSWERED) as problem:
            return replace(result, unreserved=str(problem))
        return replace(result, reservation=reservation, unreserved=lacking)

    async def _close(self, steps: Sequence[PlannedStep]) -> str:
        """Close the targets to which none of the steps goes, because a closed host takes no instance. Return
        "", or why the plan must be abandoned.
        """
        awaiting = {step.destination for step in steps}
        new = [root for root in self._names if root not in awaiting and root not in self._hold.roots]
        if not new:
            return ""
        self._hold = structs.replace(self._hold, roots=(*self._hold.roots, *new))
        held = await self._bus.asker(HOLD_HOSTS, timeout=ANSWER_SECONDS)(self._hold)
        self._opened = held.opened
        taken = [self._names[root] for root in held.taken if root in self._names]
        return f"another plan has closed {', '.join(taken)}: try again when it has ended" if taken else ""

    async def _open(self) -> None:
        if not self._hold.roots:
            return
        opening, self._hold = structs.replace(self._hold, seconds=0.0), structs.replace(self._hold, roots=())
        ask = self._bus.asker(HOLD_HOSTS, timeout=ANSWER_SECONDS)
        # If no scheduler answers, schedulers open the hosts when their time has passed.
        with suppress(Unavailable, Unroutable):
            await asyncio.shield(ask(opening))

    async def _renew(self) -> None:
        ask = self._bus.asker(HOLD_HOSTS, timeout=HOLD_SECONDS / RENEWALS)
        while not self.must_stop:
            await asyncio.sleep(HOLD_SECONDS / RENEWALS)
            with suppress(Unavailable, Unroutable):
                self._opened = (await ask(structs.replace(self._hold, renew=True))).opened

    async def _carry_out(self, plan: RoomPlanned, moves: PlannedMoves) -> RoomMade:
        done, retries = moves.done, 0
        via: tuple[str, ...] = ()
        while True:
            via = tuple(sorted({*via, *(step.source for step in plan.moves)}))[:MOST_VIA]
            plan = await plan_room(self._bus, self._rest(done, via))
            if plan.code and retries < RETRIES and not self.must_stop:
                retries += 1
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if plan.code or (not plan.moves and len(self._hold.roots) == len(self._names)):
                return RoomMade(plan, done)
            if why := await self._close(plan.moves):
                return RoomMade(structs.replace(plan, code="taken", why=why, moves=()), done)
            waves = {
                step.wave: [each for each in plan.moves if each.wave == step.wave] for step in plan.moves
            }
            started = set[str]()
            for _, steps in sorted(waves.items()):
                if started.intersection(step.build for step in steps):
                    break  # an instance that moves again: its state is read anew
                started.update(step.build for step in steps)
                if problem := await self._wave(steps, moves):
                    return RoomMade(structs.replace(plan, code=problem[0], why=problem[1], moves=()), done)
                if any(step.build in done.failed for step in steps):
                    break  # plan again without this instance

    def _rest(self, done: MovesDone, via: tuple[str, ...]) -> PlanRoom:
        """Return the query for the rest of the plan, on the same targets."""
        return structs.replace(
            self._asked,
            roots=tuple(self._names),
            budget=max(self._asked.budget - len(done.moved), 0),
            fixed=(*self._asked.fixed, *done.failed)[:MOST_FIXED],
            via=via,
        )

    async def _wave(self, steps: list[PlannedStep], moves: PlannedMoves) -> tuple[str, str] | None:
        """Carry out moves that do not depend on each other. Return None, or a reason code and a sentence if
        the plan must be abandoned.
        """
        if self.must_stop:
            return (
                "opened",
                "a target was opened by an operator, or no scheduler could be reached for too long",
            )
        await moves.run(steps)
        if not await moves.released([step for step in steps if step.build not in moves.done.failed]):
            return "unreleased", "the agents of moved instances have not destroyed the former guests in time"
        return None


def _builds(request: BuildRequested) -> str:
    amounts = amounts_text(sorted(asked_amounts(request).items()))
    return f"{several(len(request.instances), 'build')} of flavor {request.flavor.name} ({amounts} in all)"
