"""Carries out planned moves, a limited number at a time; undoes the moves of a failed plan."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import structs

from berth.operations.publishing import checked
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Unavailable, Unroutable
from bus.resources import FindAllocations
from bus.vocabulary import MAX_CAUSE, portions
from features.moves.messages import MovePlan
from features.moves.moving import FollowedMoves, MoveListener, MoveOutcome
from features.planning.messages import PlannedStep

POLL_SECONDS = 0.5  # between two reads of the allocations left on the former hosts of moved instances
SETTLE_SECONDS = 60.0  # until the former hosts of moved instances must be released
_IDS_AT_ONCE = 500


@dataclass
class MovesDone:
    """The results of planned moves so far, by build."""

    moved: list[PlannedStep] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # build → why it was not moved
    undone: list[PlannedStep] = field(default_factory=list)  # moved, and moved back


class PlannedMoves:
    """Requests planned moves one after the other or several at a time, and follows each to its end."""

    def __init__(
        self, bus: Bus, moves: FollowedMoves, listener: MoveListener, most: int, plan: MovePlan, note: str
    ) -> None:
        self.bus = bus
        self.done = MovesDone()
        self._plan: MovePlan = plan  # of moves that undo no other move
        self._note = note[:MAX_CAUSE]  # why the next moves are requested
        self._moves = moves
        self._listener = listener
        self._limit = asyncio.Semaphore(most)

    async def run(self, steps: Sequence[PlannedStep]) -> bool:
        """Carry out moves that do not depend on each other; return False if any move was not done."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._limited(step)) for step in steps]
        return all(task.result() for task in tasks)

    async def undo(self, why: str) -> None:
        """Move all moved instances back to their first hosts, the last move first: later moves may use
        capacity that earlier moves freed. An instance that cannot be moved back stays, with the reason in
        `done.failed`. `why` is a note of each move.
        """
        self._note = why[:MAX_CAUSE]
        first = {step.build: step for step in reversed(self.done.moved)}
        for step in reversed(self.done.moved.copy()):
            if (origin := first.pop(step.build, None)) is not None:
                await self._undo(structs.replace(step, source=origin.source, source_host=origin.source_host))

    async def _limited(self, step: PlannedStep) -> bool:
        async with self._limit:
            return await self._one(step)

    async def _one(self, step: PlannedStep) -> bool:
        try:
            outcome = await self._ask(step, self._plan)
        except (Unavailable, Unroutable) as problem:
            self.done.failed[step.build] = str(problem)
            return False
        if outcome.end == "done":
            self.done.moved.append(step)
        else:
            self.done.failed[step.build] = outcome.reason or outcome.code or outcome.end
        return outcome.end == "done"

    async def _undo(self, step: PlannedStep) -> None:
        await self.released([step])
        try:
            outcome = await self._ask(step, "undo")
            is_back, reason = outcome.end == "done", outcome.reason or outcome.code or outcome.end
        except (Unavailable, Unroutable) as problem:
            is_back, reason = False, str(problem)
        if is_back:
            self.done.moved[:] = [moved for moved in self.done.moved if moved.build != step.build]
            self.done.undone.append(step)
        else:
            self.done.failed[step.build] = f"it could not be moved back: {reason}"

    async def _ask(self, step: PlannedStep, plan: MovePlan) -> MoveOutcome:
        request = step.request(Clock().uuid(), plan, self._note, self._moves.reply_to)
        outcome = await self._moves.ask(checked(request))
        self._listener.on_outcome(outcome)
        return outcome

    async def released(self, steps: Sequence[PlannedStep]) -> bool:
        """Wait until the agents have destroyed the guests on the moves' former hosts, which frees capacity;
        return False after a timeout.
        """
        holders = [step.holder for step in steps if step.holder]
        ask, clock = self.bus.asker(topics.ALLOCATIONS), self.bus.clock
        until = clock.monotonic() + SETTLE_SECONDS
        while True:
            left: list[str] = []
            try:
                for some in portions(holders, _IDS_AT_ONCE):
                    left += [each.id for each in (await ask(FindAllocations(consumers=some))).consumers]
            except (Unavailable, Unroutable):
                left = holders
            if not left or clock.monotonic() > until:
                return not left
            holders = left
            await asyncio.sleep(POLL_SECONDS)
