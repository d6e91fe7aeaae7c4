"""Executes the phases of moves on a simulated agent, with durations, planned failures and interruptions.

Orders for one build on one host are numbered: a later order cancels the phase in progress, and an order that
arrives after a later order has no effect.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec.structs import replace

from bus.agent_builds import allocations_of
from compute_sim.extension import (
    HANG_SECONDS,
    NOTHING_HERE,
    AgentJob,
    Fate,
    GuestDriver,
    GuestRecord,
    SimulatedAgent,
)
from features.moves.core.guest_phases import MoveSteps, PhaseEnd, afterwards, meanwhile, refusal
from features.moves.messages import MoveKind, MoveOrdered, MoveReported

log = logging.getLogger(__name__)

_CAUSES: dict[PhaseEnd, str] = {"lost": "the agent lost power meanwhile", "hung": "it hung"}


@runtime_checkable
class MovingDriver(Protocol):
    """The methods of a driver of a hypervisor that moves guests."""

    moves: Sequence[MoveKind]  # the supported moves

    async def move(self, order: MoveOrdered, guest: GuestRecord) -> None:
        """Execute one phase of a guest's move: `prepare`, `send`, `start`, `resume` or `rebuild`."""


def moves_of(driver: GuestDriver) -> Sequence[MoveKind]:
    """Return the kinds of moves that a driver can carry out."""
    return driver.moves if isinstance(driver, MovingDriver) else ()


class SimulatedMoves:
    """Executes the move orders that a simulated agent receives, and changes its guests accordingly."""

    def __init__(self, agent: SimulatedAgent) -> None:
        self._agent = agent
        self._disk = agent.disk
        self._steps = agent.disk.memory(MoveSteps)
        self._under_way: dict[AgentJob, MoveOrdered] = {}

    async def move(self, order: MoveOrdered) -> MoveReported | None:
        """Carry out a phase of a move; return its report, or None if a later step has replaced it."""
        await self._agent.until_ready()
        earlier = self._agent.jobs.get(order.build, ("move", order.root))
        if earlier is not None and earlier.step < order.step and self._agent.driven.of(order.root):
            earlier.finish("overtaken")
        async with self._agent.driven.turn(order.build, order.root):
            return await self._move(order)

    async def _move(self, order: MoveOrdered) -> MoveReported | None:
        if order.phase == "prepare" and self._is_new(order) and self._agent.may_be_reshaped(order):
            given = await self._agent.with_current_allocations(order)
            await self._agent.until_ready()
            if given is None:
                return await self._store_outcome(_phase_report(order, "failed", cause=NOTHING_HERE))
            order = given
        verdict = self._steps.ordered(order)
        if verdict == "void":
            log.info("%s: %s of %s, step %d, is too late", order.agent, order.phase, order.build, order.step)
            return None
        if self._is_void(order):
            await self._disk.settled()
            return _phase_report(order, "failed", cause="it was destroyed on this host")
        if isinstance(verdict, MoveReported):
            await self._disk.settled()
            return verdict
        fate = self._agent.faults.phase_fate(order.move, order.phase, order.attempt)
        # An operator's `force` completes a live migration whose copy would never end.
        if fate.kind == "hang" and order.force and order.kind == "live":
            fate = Fate("done", 0.0)
        job = self._agent.jobs.get(order.build, ("move", order.root))
        if job is None or job.step < order.step:
            if why := self._refusal(order):
                waits = order.phase in ("prepare", "start") and self._disk.guest(order.build, order.attempt)
                outcome = _phase_report(order, "failed", cause=why, leftover=bool(waits))
                return await self._store_outcome(outcome)
            job = self._begin(order, fate, job)
        elif order.force:
            job.make_due()
        if self._agent.driven.of(order.root) is not None:
            return await self._move_with_driver(order, job)
        how = await self._agent.jobs.end(job)
        if how == "handed over":
            return None
        await self._agent.until_ready()
        self._under_way.pop(job, None)
        if not self._agent.jobs.finish(job):  # destroyed meanwhile, or replaced by a later order
            return None
        return await self._store_outcome(self._outcome(order, fate, lost=how == "lost"))

    async def _move_with_driver(self, order: MoveOrdered, job: AgentJob) -> MoveReported | None:
        guest = replace(self._guest(order), attempt=order.attempt)
        fate = await self._drive(order, guest, job)
        self._under_way.pop(job, None)
        if not self._agent.jobs.finish(job) or fate is None:
            return None
        return await self._store_outcome(self._outcome(order, fate, lost=False))

    async def _drive(self, order: MoveOrdered, guest: GuestRecord, job: AgentJob) -> Fate | None:
        """Execute a phase of a move with the host's driver, and return the outcome.

        Return None if a later order interrupted the driver's call.
        """
        driven = self._agent.driven
        driver: Any = driven.of(order.root)
        fate = await driven.call(job, lambda: driver.move(order, guest), "done")
        if fate is None or fate.kind == "done":
            return fate
        if order.phase in ("prepare", "start") and not await driven.succeeds("destroy", guest):
            return Fate("hang", 0.0, fate.cause)
        if order.phase == "send":
            await driven.succeeds("start", guest)
        return Fate("failed", 0.0, fate.cause)

    def _unsupported(self, order: MoveOrdered) -> str:
        """Return why the driver of a host's hypervisor does not support a type of move; empty if it does."""
        driver = self._agent.driven.of(order.root)
        if driver is None or order.phase in ("start", "resume") or order.kind in moves_of(driver):
            return ""
        return f"the driver {type(driver).__name__} does not support the move {order.kind}"

    async def progress(self) -> Sequence[MoveReported]:
        """Return a progress report, in percent, for each running phase of a move, except hanging phases."""
        if not self._agent.ready:
            return []
        now = asyncio.get_running_loop().time()
        return [
            _phase_report(order, "progress", percent=min(99, int(100 * (now - job.started) / length)))
            for job, order in self._under_way.items()
            if (length := job.due - job.started) > 0 and now - job.started < length < HANG_SECONDS
        ]

    def _is_new(self, order: MoveOrdered) -> bool:
        known = self._steps.ordered(order) != "go on" or self._is_void(order)
        return not known and self._disk.guest(order.build, order.attempt) is None

    def _is_void(self, order: MoveOrdered) -> bool:
        return self._disk.builds.is_void(order.build, order.attempt)

    def _refusal(self, order: MoveOrdered) -> str:
        guests = self._disk.hosted.there.get(order.build, {})
        states = {attempt: guest.state for attempt, guest in guests.items()}
        if why := self._unsupported(order) or refusal(order, states):
            return why
        key = order.build, order.attempt
        if order.phase == "prepare" and (full := self._disk.devices.refusal(key, allocations_of(order))):
            return f"the host cannot hold it: {full}"
        return ""

    def _begin(self, order: MoveOrdered, fate: Fate, earlier: AgentJob | None) -> AgentJob:
        disk, now = self._disk, asyncio.get_running_loop().time()
        started, due = now, now + (HANG_SECONDS if fate.kind == "hang" else fate.seconds)
        if earlier is not None:
            before = self._under_way.pop(earlier, None)
            self._agent.jobs.finish(earlier)
            if before is not None and (before.move, before.phase) == (order.move, order.phase):
                started, due = earlier.started, earlier.due  # a copy continues from its progress
            earlier.finish("overtaken")
        if order.force or self._is_done(order):
            due = min(due, now)
        if order.phase == "prepare":
            disk.begin(order)
        guest = self._guest(order)
        if order.phase == "resume" and guest.attempt != order.attempt:
            guest = disk.rename(guest, order.attempt)
        if (state := meanwhile(order, guest.state)) != guest.state:
            guest = disk.become(guest, state)
        self._steps.started(order)
        self._agent.use_changed(order.root)
        job = AgentJob(order.build, guest.attempt, ("move", order.root), order.root, started, due, order.step)
        self._under_way[self._agent.jobs.begin(job)] = order
        self._agent.power.count_down()
        return job

    def _is_done(self, order: MoveOrdered) -> bool:
        last = self._steps.last(order.build, order.root)
        if last is None or last.outcome != "done":
            return False
        return (last.move, last.phase, last.attempt) == (order.move, order.phase, order.attempt)

    def _outcome(self, order: MoveOrdered, fate: Fate, *, lost: bool) -> MoveReported:
        disk, guest = self._disk, self._guest(order)
        ends: dict[str, PhaseEnd] = {"hang": "hung", "done": "done"}
        end = "lost" if lost else ends.get(fate.kind, "failed")
        if order.phase == "rebuild" and end == "done" and guest.attempt != order.attempt:
            guest = disk.rename(guest, order.attempt, order.spec)
        state = afterwards(order, guest.state, end)
        if state is None:
            disk.lose(guest)
        else:
            if end == "done" and state == "running":
                disk.wake(guest)
            if state != guest.state or order.phase == "prepare":
                disk.become(guest, state)
        self._agent.use_changed(order.root)
        if end == "done":
            return _phase_report(order, "done", percent=100)
        leftover = order.phase in ("prepare", "start") and state is not None
        return _phase_report(order, "failed", cause=fate.cause or _CAUSES.get(end, ""), leftover=leftover)

    def _guest(self, order: MoveOrdered) -> GuestRecord:
        # until it is renamed, the guest has its previous attempt number
        guest = self._disk.guest(order.build, order.attempt) or self._disk.guest(order.build, order.was)
        assert guest is not None, f"{order.phase} of {order.build} was started without a guest"
        return guest

    async def _store_outcome(self, outcome: MoveReported) -> MoveReported:
        self._steps.finished(outcome)
        self._disk.store(outcome.build)
        await self._disk.settled()
        return outcome


def _phase_report(
    order: MoveOrdered, outcome: Literal["done", "failed", "progress"], **details: Any
) -> MoveReported:
    return MoveReported(**order.phase_fields(), outcome=outcome, **details)
