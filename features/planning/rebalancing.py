"""Moves instances from the fullest hosts to emptier hosts: once, or as a controller until it is stopped."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf

from msgspec import structs

from berth.operations.publishing import answered
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus, Listener
from bus.errors import UNANSWERED, Unavailable, Unroutable
from bus.replication import PlacementChanged
from features.moves.moving import MoveListener, following
from features.planning.core.rebalancing import ImbalanceWatch
from features.planning.messages import (
    PLAN_BALANCE,
    SWITCH_BALANCING,
    BalanceMove,
    BalancePlanned,
    BalancingSwitched,
    PlanBalance,
    SwitchBalancing,
)
from features.planning.planned_moves import MovesDone, PlannedMoves

ANSWER_SECONDS = 60.0  # until a scheduler has planned
CALM_SECONDS = 10.0  # between two plans of a controller, however many changes arrive
STOP_SECONDS = 60.0  # between two reads of the stop switch while nothing changes
LEASE_SECONDS = 60.0  # without a sign of life of a controller, until another one may run
RENEWALS = 3  # of the lease in this time
MOST_FIXED = 1000  # instances that a controller leaves alone because a move of them failed or was undone

_QUERY = SwitchBalancing()

log = logging.getLogger(__name__)


async def plan_balance(bus: Bus, asked: PlanBalance) -> BalancePlanned:
    return await bus.asker(PLAN_BALANCE, timeout=ANSWER_SECONDS)(asked)


async def switch_state(
    bus: Bus, asked: SwitchBalancing, *, patient: bool = False
) -> BalancingSwitched | None:
    """Return the state of the switch by which operators stop all rebalancing. If no scheduler answers, return
    None, or (`patient`) repeat the query until a scheduler answers.
    """
    with suppress(Unavailable, Unroutable):
        return await answered(bus, partial(bus.asker(SWITCH_BALANCING), asked), inf if patient else 0.0)
    return None


async def is_permitted(bus: Bus, lease: SwitchBalancing = _QUERY, *, patient: bool = False) -> bool:
    """Return True if no operator has stopped all rebalancing and the controller that sends `lease`, if any,
    still leads. If no scheduler answers, return False, or with `patient`, repeat the query until one answers.
    """
    state = await switch_state(bus, lease, patient=patient)
    return state is not None and not state.stopped and not state.taken


async def carry_out(
    bus: Bus,
    asked: PlanBalance,
    plan: BalancePlanned,
    most: int,
    listener: MoveListener,
    lease: SwitchBalancing = _QUERY,
) -> MovesDone:
    """Carry out a plan in its sequence, at most `most` moves at a time; begin no move after an operator's
    stop.

    When the moves of a batch have ended, the rest is planned again: an instance moves only for the gain that
    its move has then. If at least half of the moves have failed, the completed moves are undone.
    """
    tried = failed = 0
    async with following(bus, f"balance-{Clock().uuid()[:8]}", listener) as followed:
        moves = PlannedMoves(bus, followed, listener, most, "rebalance", "rebalances the hosts")
        while plan.moves and 2 * failed < tried + _steps(plan.moves) and await is_permitted(bus, lease):
            batch = _independent(plan.moves, most)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(moves.exchange(move)) for move in batch]
            tried += _steps(batch)
            failed += _steps(move for move, task in zip(batch, tasks, strict=True) if not task.result())
            plan = await _plan_rest(moves, asked, tried, batch)
        if failed and 2 * failed >= tried + _steps(plan.moves) and moves.done.moved:
            why = f"undoes a rebalancing: {failed} of its {tried + _steps(plan.moves)} moves failed"
            await moves.undo(why, partial(is_permitted, bus, lease, patient=True))
        return moves.done


async def _plan_rest(
    moves: PlannedMoves, asked: PlanBalance, tried: int, batch: Iterable[BalanceMove]
) -> BalancePlanned:
    """Plan the moves that gain enough after `batch`, within the rest of the budget. Instances that were
    moved, or could not be moved, stay. If no scheduler answers, there is no further move.
    """
    if tried >= asked.budget:
        return BalancePlanned()
    await moves.released([step for move in batch for step in move.steps])
    done = moves.done
    stay = dict.fromkeys((*done.failed, *(step.build for step in (*done.undone, *done.moved))))
    fixed = (*asked.fixed, *stay)[-MOST_FIXED:]
    with suppress(*UNANSWERED):
        return await plan_balance(moves.bus, structs.replace(asked, budget=asked.budget - tried, fixed=fixed))
    return BalancePlanned()


def _steps(moves: Iterable[BalanceMove]) -> int:
    return sum(len(move.steps) for move in moves)


def _hosts(move: BalanceMove) -> set[str]:
    return {host for step in move.steps for host in (step.source, step.destination)}


def _independent(waiting: Sequence[BalanceMove], most: int) -> list[BalanceMove]:
    """Return the first moves of a plan, at most `most`, that have no host in common: they can run at the same
    time.
    """
    hosts, batch = set[str](), list[BalanceMove]()
    for move in waiting[:most]:
        if hosts & _hosts(move):
            break
        hosts |= _hosts(move)
        batch.append(move)
    return batch


@dataclass
class BalanceController:
    """Plans a rebalancing after changes of placement, and carries the plan out if every plan during `hold`
    seconds contained moves.
    """

    bus: Bus
    asked: PlanBalance
    most: int  # moves at a time
    hold: float  # seconds
    listener: MoveListener
    planned: Callable[[BalancePlanned], None]
    _watch: ImbalanceWatch = field(init=False)

    def __post_init__(self) -> None:
        self._watch = ImbalanceWatch(self.hold)

    async def run(self) -> bool:
        """Run until an operator stops rebalancing; return True. Return False if another controller runs, or
        has taken over after this one reached no scheduler for LEASE_SECONDS.
        """
        begin = SwitchBalancing(controller=Clock().uuid(), seconds=LEASE_SECONDS)
        lease = structs.replace(begin, renew=True)
        state = await switch_state(self.bus, begin, patient=True)
        async with asyncio.TaskGroup() as group:
            renewing = group.create_task(self._renew(lease))
            changes = await self.bus.listen(topics.PLACEMENT_CHANGED.at())
            try:
                while state is not None and not state.stopped and not state.taken:
                    await self._step(lease)
                    await self._pause(changes)
                    state = await switch_state(self.bus, lease, patient=True)
            finally:
                renewing.cancel()
                await changes.stop()
                await asyncio.shield(switch_state(self.bus, structs.replace(lease, seconds=0.0)))
        return state is None or not state.taken

    async def _renew(self, lease: SwitchBalancing) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / RENEWALS)
            await switch_state(self.bus, lease)

    async def _step(self, lease: SwitchBalancing) -> None:
        """Plan moves, and carry them out if every plan of the last `hold` seconds had moves. If no scheduler
        answers, the `hold` seconds begin again."""
        try:
            plan = await plan_balance(self.bus, self.asked)
            if self._watch.is_due(self.bus.clock.monotonic(), bool(plan.moves)):
                self.planned(plan)
                done = await carry_out(self.bus, self.asked, plan, self.most, self.listener, lease)
                undone = (step.build for step in done.undone)
                fixed = (*self.asked.fixed, *done.failed, *undone)[-MOST_FIXED:]
                self.asked = structs.replace(self.asked, fixed=fixed)
                self._watch.reset()
        except UNANSWERED as problem:
            log.warning("rebalancing waits for its scheduler or broker: %s", problem)
            self._watch.reset()

    async def _pause(self, changes: Listener[PlacementChanged]) -> None:
        """Wait CALM_SECONDS, then for a change of placement. The second wait ends at the latest when plans
        have contained moves for `hold` seconds or, if no moves are planned now, after STOP_SECONDS.
        """
        await asyncio.sleep(CALM_SECONDS)
        left = self._watch.left(self.bus.clock.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(left if left is not None else STOP_SECONDS):
                await changes.get()
