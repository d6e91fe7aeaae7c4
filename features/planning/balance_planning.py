"""Answers the query for moves that rebalance the hosts of each cell."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from msgspec import structs
from prometheus_client import Counter, Histogram

from bus.candidates import Bools, Floats, Ints, PlacedHost
from bus.host_health import DISABLED, FORCED_DOWN
from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from features.planning.cloud_reading import CloudReading, usable_weigher
from features.planning.core.moved_cloud import CloudState, PlannedMove
from features.planning.core.rebalancing import BalanceLimits, plan_balance
from features.planning.core.usable_moves import plan_usable
from features.planning.messages import LEAST_GAINS, BalancePlanned, PlanBalance, PlannedStep
from features.planning.room_planning import RoomPlanner, picked
from features.what_if.questions import PATIENCE, WhatIfs
from scheduler_worker.core.extension import Weigher
from scheduler_worker.extension import only_on

READ = 32  # of the fullest and of the emptiest hosts, to read their instances
READ_USABLE = 128  # of the hosts on which most is not usable, likewise
CHECKS = 40  # plans that are checked for one cell

PLANS = Counter(
    "berth_scheduler_balance_plans", "answers about moves that rebalance hosts: planned, or none", ["result"]
)
GAIN = Histogram(
    "berth_scheduler_balance_gain",
    "planned gain of each move: how much emptier the fuller host becomes, or how much more is usable",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5),
)


class BalancePlanner:
    """Plans moves that balance the load of hosts, or make free capacity usable."""

    def __init__(self, what_ifs: WhatIfs, rooms: RoomPlanner) -> None:
        self._what_ifs = what_ifs
        self._rooms = rooms

    async def answer(self, asked: PlanBalance) -> BalancePlanned:
        """Return the next moves towards the goal, at most as many as asked for."""
        scheduler = self._rooms.scheduler
        await scheduler.source.fresh()  # it includes what earlier moves of the rebalancing changed
        weigher = usable_weigher(scheduler.policy, enabled=not asked.goal) if asked.goal != "spread" else None
        goal, usual = asked.goal or ("spread" if weigher is None else "usable"), scheduler.demand.usual()
        limits = BalanceLimits(
            asked.budget, LEAST_GAINS[goal] if asked.gain is None else asked.gain, asked.above
        )
        async with asyncio.timeout(PATIENCE), self._what_ifs.lock:
            if goal == "spread":
                planned = await self._spread(asked, limits)
            elif weigher is None:
                planned = BalancePlanned(why="no weigher of this scheduler knows what is usable of hosts")
            elif not usual.shapes:
                planned = BalancePlanned(why="no requests were counted so far, so none are usual")
            else:
                classes = sorted({name for shape in usual.shapes for name in shape.amounts})
                planned = await self._usable(asked, _Usable(classes, limits, weigher))
        PLANS.labels("planned" if planned.moves else "none").inc()
        for move in planned.moves:
            GAIN.observe(move.gain)
        return structs.replace(planned, goal=goal)

    async def _spread(self, asked: PlanBalance, limits: BalanceLimits) -> BalancePlanned:
        """Plan each cell by itself."""
        cells = {host.cell for host in self._rooms.scheduler.source.hosts() if host.agent and host.cell}
        moves: list[PlannedStep] = []
        before: dict[str, float] = {}
        after: dict[str, float] = {}
        for cell in [asked.cell] if asked.cell else sorted(cells):
            left = replace(limits, budget=limits.budget - len(moves))
            planned = await self._planned(asked, cell, _Spread([asked.resource_class], left))
            if planned is not None:
                of_cell, before[cell], after[cell] = planned
                moves += of_cell
        return BalancePlanned(moves=tuple(moves), before=before, after=after)

    async def _usable(self, asked: PlanBalance, goal: "_Usable") -> BalancePlanned:
        """Plan all cells together. No instance leaves its cell, because only hosts of its cell accept it."""
        planned = await self._planned(asked, asked.cell, goal)
        if planned is None:
            return BalancePlanned()
        moves, *figures = planned
        by_cell: list[dict[str, float]] = [{}, {}]
        for position, host in self._hosts().items():
            for fits, of_cell in zip(figures, by_cell, strict=True):
                if host.cell and position < len(fits) and (host.cell == asked.cell or not asked.cell):
                    of_cell[host.cell] = of_cell.get(host.cell, 0.0) + float(fits[position])
        return BalancePlanned(moves=tuple(moves), before=by_cell[0], after=by_cell[1])

    async def _planned(
        self, asked: PlanBalance, cell: str, goal: "_Spread | _Usable"
    ) -> tuple[list[PlannedStep], Any, Any] | None:
        """Return the moves of a plan that was checked, and the goal's figures before and after; None if there
        are no hosts, or if hosts refused every plan.
        """
        reading = self._rooms.reading(asked.cold, asked.fixed)
        for _ in range(CHECKS):
            found = self._read(cell, reading, goal)
            if found is None:
                return None
            cloud, hosts = found
            if not reading.hosts:
                host_at = self._hosts()
                rows = dict.fromkeys(goal.rows_to_read(cloud, hosts).tolist())
                await reading.read([host_at[row] for row in rows if row in host_at])
                if reading.hosts:
                    continue
            moves, before, after = await asyncio.to_thread(goal.plan, cloud, hosts)
            checked = self._checked(moves, reading)
            if checked is not None:
                return checked, before, after
        return None

    def _read(
        self, cell: str, reading: CloudReading, goal: "_Spread | _Usable"
    ) -> tuple[CloudState, Bools] | None:
        """Return all hosts as arrays, and a mask of the enabled hosts of the cell that have one of the
        resource classes of a goal; None if no host has.
        """
        scheduler = self._rooms.scheduler
        source, choosing = scheduler.source, scheduler.choosing(self._what_ifs.supposing())
        searches = []
        for name in goal.classes:
            groups = (ResourceGroup(resources={name: 1}),)
            question = FindCandidates(groups=groups, cell=cell, root_forbidden=(DISABLED, FORCED_DOWN))
            searches.append(source.search(question, empty=True))
        searches = [search for search in searches if search.positions.size]
        if not searches:
            return None
        held = {name for order in reading.orders.values() for name in order.preferred.asked}
        pools = set[str]().union(*source.sharing.values())
        classes = sorted(held.union(goal.classes) - pools)
        cloud = reading.state(choosing, classes, searches, goal.weigher)
        hosts: Bools = np.zeros(len(cloud.packing), np.bool_)
        for search in searches:
            hosts[search.positions] = choosing.hosts.served.take(search.positions)
        return cloud, hosts

    def _checked(self, moves: Sequence[PlannedMove], reading: CloudReading) -> list[PlannedStep] | None:
        """Return the moves as steps if each gets its destination host now; else None, after adding the
        destination of the first refused move to `reading.forbidden`.
        """
        scheduler, supposing, host_at = self._rooms.scheduler, self._what_ifs.supposing(), self._hosts()
        choosing, steps = scheduler.choosing(supposing), list[PlannedStep]()
        with supposing.active(), scheduler.source.packing.trying() as trial:
            for move in moves:
                step = reading.step(move, host_at)
                order = only_on(reading.orders[step.build], [step.destination])
                if not picked(choosing, scheduler, order):
                    reading.forbidden.setdefault(step.build, set()).add(step.destination)
                    return None
                if (from_ := reading.starts[step.build].source) is not None:
                    trial.release(from_.choice.allocations)
                steps.append(step)
            return steps

    def _hosts(self) -> Mapping[int, PlacedHost]:
        return {host.position: host for host in self._rooms.scheduler.source.hosts()}


@dataclass(frozen=True)
class _Spread:
    """The goal that hosts are equally full; its figure is a spread."""

    classes: Sequence[str]  # the one of which used shares are compared
    limits: BalanceLimits
    weigher: None = None

    def _column(self, cloud: CloudState) -> int:
        return cloud.packing.classes.index(self.classes[0])

    def rows_to_read(self, cloud: CloudState, hosts: Bools) -> Ints:
        """Return the fullest and the emptiest hosts."""
        rows, column = np.flatnonzero(hosts), self._column(cloud)
        used = 1 - cloud.packing.free[rows, column] / np.maximum(cloud.packing.whole[rows, column], 1)
        order = rows[np.argsort(-used, kind="stable")]
        return np.concatenate((order[:READ], order[-READ:]))

    def plan(self, cloud: CloudState, hosts: Bools) -> tuple[list[PlannedMove], float, float]:
        return plan_balance(cloud, self._column(cloud), hosts, self.limits)


@dataclass(frozen=True)
class _Usable:
    """The goal that the usual requests can use more; its figure is how many of them fit, by row."""

    classes: Sequence[str]  # of the usual requests
    limits: BalanceLimits
    weigher: Weigher

    def rows_to_read(self, cloud: CloudState, hosts: Bools) -> Ints:
        """Return the hosts on which most is free, but not usable."""
        assert cloud.usable is not None
        rows = np.flatnonzero(hosts)
        return rows[np.argsort(-cloud.usable.capacity.wasted()[rows], kind="stable")[:READ_USABLE]]

    def plan(self, cloud: CloudState, hosts: Bools) -> tuple[list[PlannedMove], Floats, Floats]:
        assert cloud.usable is not None
        return plan_usable(cloud, cloud.usable, hosts, self.limits)
