"""Answers the query for moves that make the load of hosts more equal, one cell after the other."""

import asyncio
from collections.abc import Mapping

import numpy as np
from prometheus_client import Counter, Histogram

from bus.candidates import Bools, PlacedHost
from bus.host_health import DISABLED, FORCED_DOWN
from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from features.planning.cloud_reading import CloudReading
from features.planning.core.moved_cloud import CloudState
from features.planning.core.rebalancing import BalanceLimits, BalancingStep, plan_balance
from features.planning.messages import BalanceMove, BalancePlanned, PlanBalance
from features.planning.room_planning import RoomPlanner, picked
from features.what_if.questions import PATIENCE, WhatIfs
from scheduler_worker.extension import only_on

READ = 32  # of the fullest and of the emptiest hosts, to read their instances
CHECKS = 40  # plans that are checked for one cell

PLANS = Counter(
    "berth_scheduler_balance_plans", "answers about moves that rebalance hosts: planned, or none", ["result"]
)
GAIN = Histogram(
    "berth_scheduler_balance_gain",
    "planned share by which the fuller host of each move becomes emptier",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5),
)


class BalancePlanner:
    def __init__(self, what_ifs: WhatIfs, rooms: RoomPlanner) -> None:
        self._what_ifs = what_ifs
        self._rooms = rooms

    async def answer(self, asked: PlanBalance) -> BalancePlanned:
        source = self._rooms.scheduler.source
        await source.fresh()  # it includes what earlier moves of the rebalancing changed
        cells = sorted({host.cell for host in source.hosts() if host.agent and host.cell})
        moves: list[BalanceMove] = []
        before: dict[str, float] = {}
        after: dict[str, float] = {}
        budget = asked.budget
        async with asyncio.timeout(PATIENCE), self._what_ifs.lock:
            for cell in cells if not asked.cell else [asked.cell]:
                planned = await self._cell(asked, cell, budget)
                if planned is not None:
                    steps, before[cell], after[cell] = planned
                    moves += steps
                    budget -= sum(len(each.steps) for each in steps)
        PLANS.labels("planned" if moves else "none").inc()
        for move in moves:
            GAIN.observe(move.gain)
        return BalancePlanned(moves=tuple(moves), before=before, after=after)

    async def _cell(
        self, asked: PlanBalance, cell: str, budget: int
    ) -> tuple[list[BalanceMove], float, float] | None:
        reading = self._rooms.reading(asked.cold, asked.fixed)
        limits = BalanceLimits(budget, asked.gain, asked.above)
        for _ in range(CHECKS):
            found = self._read(asked, cell, reading)
            if found is None:
                return None
            cloud, hosts, column = found
            if await self._read_more(cloud, hosts, column, reading):
                continue
            steps, before, after = await asyncio.to_thread(plan_balance, cloud, column, hosts, limits)
            checked = self._checked(steps, reading)
            if checked is not None:
                return checked, before, after
        return None

    def _read(
        self, asked: PlanBalance, cell: str, reading: CloudReading
    ) -> tuple[CloudState, Bools, int] | None:
        """Return all hosts as arrays, a mask of the enabled hosts of the cell that have the resource class of
        `asked`, and the column of this class; None if no host has the class.
        """
        scheduler = self._rooms.scheduler
        choosing = scheduler.choosing(self._what_ifs.supposing())
        groups = (ResourceGroup(resources={asked.resource_class: 1}),)
        search = scheduler.source.search(
            FindCandidates(groups=groups, cell=cell, root_forbidden=(DISABLED, FORCED_DOWN)), empty=True
        )
        if not search.positions.size:
            return None
        held = {name for order in reading.orders.values() for name in order.preferred.asked}
        pools = set[str]().union(*scheduler.source.sharing.values())
        classes = sorted({asked.resource_class, *held} - pools)
        cloud = reading.state(choosing, classes, search)
        hosts: Bools = np.zeros(len(cloud.packing), np.bool_)
        hosts[search.positions] = choosing.hosts.served.take(search.positions)
        return cloud, hosts, classes.index(asked.resource_class)

    async def _read_more(self, cloud: CloudState, hosts: Bools, column: int, reading: CloudReading) -> bool:
        rows = np.flatnonzero(hosts)
        free, whole = cloud.packing.free[rows, column], cloud.packing.whole[rows, column]
        used = 1 - free / np.maximum(whole, 1)
        order = rows[np.argsort(-used, kind="stable")]
        host_at = self._hosts()
        wanted = [host_at[row] for row in (*order[:READ].tolist(), *order[-READ:].tolist()) if row in host_at]
        new = [host for host in wanted if host.uuid not in reading.hosts]
        if new and not reading.hosts:
            await reading.read(new)
            return True
        return False

    def _checked(self, steps: list[BalancingStep], reading: CloudReading) -> list[BalanceMove] | None:
        """Return the moves of `steps` if each move gets its destination host now; else None, after adding the
        destination of the first refused move to `reading.forbidden`.
        """
        scheduler, supposing, host_at = self._rooms.scheduler, self._what_ifs.supposing(), self._hosts()
        choosing, planned = scheduler.choosing(supposing), list[BalanceMove]()
        with supposing.active(), scheduler.source.packing.trying() as trial:
            for step in steps:
                parts = tuple(reading.step(move, host_at) for move in step.moves)
                for part in parts:
                    order = only_on(reading.orders[part.build], [part.destination])
                    if not picked(choosing, scheduler, order):
                        reading.forbidden.setdefault(part.build, set()).add(part.destination)
                        return None
                    if (from_ := reading.starts[part.build].source) is not None:
                        trial.release(from_.choice.allocations)
                planned.append(BalanceMove(steps=parts, gain=round(step.gain, 6)))
            return planned

    def _hosts(self) -> Mapping[int, PlacedHost]:
        return {host.position: host for host in self._rooms.scheduler.source.hosts()}
