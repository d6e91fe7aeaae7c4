"""Moves instances from the fullest hosts to emptier hosts: once, or as a controller until it is stopped."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from msgspec import structs

from berth.operations.following import MoveListener, following
from berth.operations.planned_moves import POLL_SECONDS, MovesDone, PlannedMoves
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Unavailable, Unroutable
from bus.room import BalanceMove, BalancePlanned, PlanBalance, SwitchBalancing
from scheduler_worker.core.rebalancing import ImbalanceWatch

ANSWER_SECONDS = 60.0  # until a scheduler has planned
CALM_SECONDS = 10.0  # between two plans of a controller, however many changes arrive
STOP_SECONDS = 60.0  # between two reads of the stop switch while nothing changes
MOST_FIXED = 1000  # instances that a controller leaves alone because a move of them failed or was undone


async def plan_balance(bus: Bus, asked: PlanBalance) -> BalancePlanned:
    return await bus.asker(topics.PLAN_BALANCE, timeout=ANSWER_SECONDS)(asked)


async def is_permitted(bus: Bus, *, patient: bool = False) -> bool:
    """Return whether no operator has stopped all rebalancing. If no scheduler answers, return False, or
    (`patient`) repeat the query until a scheduler answers.
    """
    while True:
        try:
            return not (await bus.asker(topics.SWITCH_BALANCING)(SwitchBalancing())).stopped
        except (Unavailable, Unroutable):
            if not patient:
                return False
        await asyncio.sleep(POLL_SECONDS)


async def carry_out(bus: Bus, plan: BalancePlanned, most: int, listener: MoveListener) -> MovesDone:
    """Carry out a plan in its sequence, at most `most` moves at a time; begin no move after an operator's
    stop.

    Moves from or to a host of a failed move are left out: their gain was computed for a successful move. If
    at least half of the plan's moves have failed or are left out, the completed moves are undone.
    """
    waiting = list(plan.moves)
    planned, lost = _steps(waiting), 0
    async with following(bus, f"balance-{Clock().uuid()[:8]}", listener) as followed:
        moves = PlannedMoves(bus, followed, listener, most, "rebalance", "rebalances the hosts")
        while waiting and 2 * lost < planned and await is_permitted(bus):
            batch = _independent(waiting, most)
            waiting = waiting[len(batch) :]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(moves.exchange(move)) for move in batch]
            failed = [move for move, task in zip(batch, tasks, strict=True) if not task.result()]
            unaffected = _unaffected(waiting, failed)
            lost += _steps(failed) + _steps(waiting) - _steps(unaffected)
            waiting = unaffected
        if 2 * lost >= planned and moves.done.moved:
            why = f"undoes a rebalancing: {lost} of its {planned} moves failed or were left out"
            await moves.undo(why, partial(is_permitted, bus, patient=True))
        return moves.done


def _steps(moves: Iterable[BalanceMove]) -> int:
    return sum(len(move.steps) for move in moves)


def _unaffected(waiting: list[BalanceMove], failed: Iterable[BalanceMove]) -> list[BalanceMove]:
    """Return the waiting moves of a plan that have no host in common with failed moves, neither directly nor
    through other waiting moves.
    """
    changed, kept = set[str]().union(*map(_hosts, failed)), list[BalanceMove]()
    for move in waiting:
        if changed & _hosts(move):
            changed |= _hosts(move)
        else:
            kept.append(move)
    return kept


def _hosts(move: BalanceMove) -> set[str]:
    return {host for step in move.steps for host in (step.source, step.destination)}


def _independent(waiting: list[BalanceMove], most: int) -> list[BalanceMove]:
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


@dataclass(frozen=True)
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

    async def run(self) -> None:
        """Run until an operator stops rebalancing."""
        watch, asked, clock = ImbalanceWatch(self.hold), self.asked, self.bus.clock
        changes = await self.bus.listen(topics.PLACEMENT_CHANGED.at())
        try:
            while await is_permitted(self.bus):
                plan = BalancePlanned()
                with suppress(Unavailable, Unroutable):  # the next change tries again
                    plan = await plan_balance(self.bus, asked)
                if watch.is_due(clock.monotonic(), bool(plan.moves)):
                    self.planned(plan)
                    done = await carry_out(self.bus, plan, self.most, self.listener)
                    undone = (step.build for step in done.undone)
                    fixed = (*asked.fixed, *done.failed, *undone)[-MOST_FIXED:]
                    asked = structs.replace(asked, fixed=fixed)
                    watch.reset()
                await asyncio.sleep(CALM_SECONDS)
                left = watch.left(clock.monotonic())
                with suppress(TimeoutError):
                    async with asyncio.timeout(left if left is not None else STOP_SECONDS):
                        await changes.get()
        finally:
            await changes.stop()
