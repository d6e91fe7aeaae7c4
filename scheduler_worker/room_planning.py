"""Answers the query for moves that make room: plans them on arrays, and checks each plan by the evaluation
that would place its moves and builds.
"""

import asyncio
from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import structs
from prometheus_client import Counter

from bus.candidates import Bools, CandidateSearch
from bus.host_health import DISABLED, FORCED_DOWN
from bus.queries import PlacedThere
from bus.room import PlannedStep, PlanRoom, RoomPlanned
from bus.vocabulary import Allocations, Id
from scheduler_worker.cloud_reading import CloudReading, accepting, only_on
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.make_room import RoomDemand, RoomPlan, plan_room
from scheduler_worker.core.moved_cloud import CloudState
from scheduler_worker.core.order import Order
from scheduler_worker.move_courses import MoveCourses
from scheduler_worker.placing import Scheduler
from scheduler_worker.queries import CellQueries
from scheduler_worker.what_if import PATIENCE, WhatIfs

PORTIONS = (64, 256, 1024)  # targets of which instances are read, if fewer give no plan
CHECKS = 40  # plans that are checked for one question
WHY = {
    "no_host": "no host would fit the flavor, even if it were empty",
    "immovable": "of {hosts} hosts that would fit it if they were empty, each has too much that cannot move",
    "budget": "of {hosts} hosts that would fit it if they were empty, none does after {budget} moves",
    "destinations": "the instances that would have to leave one of {hosts} hosts fit nowhere else",
    "changing": "hosts refused every plan that was tried, or changed meanwhile: try again",
}

PLANS = Counter(
    "berth_scheduler_room_plans",
    "answers about moves that make room: planned, fits (without moves), or the code of the reason",
    ["result"],
)


@dataclass(eq=False)
class _Question:
    """A question in progress: the request, what was read for it, and the hosts that refused its instances."""

    asked: PlanRoom
    order: Order
    reading: CloudReading
    refused: set[str] = field(default_factory=set)  # roots that do not fit an instance after all


class RoomPlanner:
    def __init__(self, what_ifs: WhatIfs, courses: MoveCourses, cells: CellQueries) -> None:
        self._what_ifs = what_ifs
        self._courses = courses
        self._cells = cells

    @property
    def scheduler(self) -> Scheduler:
        return self._courses.scheduler

    def reading(self, cold: bool, fixed: Sequence[Id]) -> CloudReading:
        return CloudReading(self.scheduler, self._courses.lookups, self._cells, cold, frozenset(fixed))

    async def answer(self, asked: PlanRoom) -> RoomPlanned:
        answer = await self._answer(asked)
        PLANS.labels(answer.code or ("planned" if answer.moves else "fits")).inc()
        return answer

    async def _answer(self, asked: PlanRoom) -> RoomPlanned:
        try:
            async with asyncio.timeout(PATIENCE), self._what_ifs.lock:
                await self.scheduler.source.fresh()  # it includes what earlier moves of the plan released
                [(order, begun)] = await self.scheduler.resolved([asked.request])
                if begun.refusal or not order.alternatives:
                    return RoomPlanned(code="unreadable", why=begun.refusal)
                order = structs.replace(order, alternatives=order.alternatives[:1])
                order = _on_closed(order, asked.roots) if asked.roots else order
                question = _Question(asked, order, self.reading(asked.cold, asked.fixed))
                return await self._plan(question)
        except TimeoutError:
            return RoomPlanned(code="changing", why=f"no plan was found within {PATIENCE:g} s")

    async def _plan(self, question: _Question) -> RoomPlanned:
        portion, plan = iter(PORTIONS), RoomPlan(code="no_host")
        for _ in range(CHECKS):
            found = self._read(question)
            if found is None:
                break
            cloud, demand = found
            plan = await asyncio.to_thread(plan_room, cloud, demand, question.asked.budget)
            most = next(portion, 0) if plan.code not in ("", "no_host") else 0
            if most and await self._read_more(question, cloud, demand, most):
                continue
            answer = self._checked(question, plan)
            if answer is not None:
                return answer
        else:
            return RoomPlanned(code="changing", why=WHY["changing"], hosts=plan.hosts)
        answered, _ = await self._what_ifs.chosen(question.order, 8, self._what_ifs.supposing())
        return RoomPlanned(code="no_host", why=WHY["no_host"], decision=answered.decision)

    def _read(self, question: _Question) -> tuple[CloudState, RoomDemand] | None:
        """Return the hosts and the builds to fit; None if no host would accept such a build even if it were
        empty.
        """
        choosing = self.scheduler.choosing(self._what_ifs.supposing())
        alternative = question.order.alternatives[0]
        found = accepting(_ignoring_closure(choosing, question), alternative)
        if found is None or not found[1].any():
            return None
        search, accepted = found
        pools = set[str]().union(*self.scheduler.source.sharing.values())
        needed = {name: amount for name, amount in alternative.asked.items() if name not in pools}
        held = {name for start in question.reading.orders.values() for each in start.alternatives[:1]
                for name in each.asked}  # fmt: skip
        classes = sorted(needed.keys() | (held - pools))
        cloud = question.reading.state(choosing, classes, search)
        demand = self._demand(question, cloud, classes, search, accepted)
        return (cloud, demand) if demand.accepted.any() else None

    def _demand(
        self,
        question: _Question,
        cloud: CloudState,
        classes: list[str],
        search: CandidateSearch,
        accepted: Bools,
    ) -> RoomDemand:
        alternative, count, most = question.order.alternatives[0], len(question.order.instances), 1_000_000
        amounts = np.array([float(alternative.asked.get(name, 0)) for name in classes])
        if (group := alternative.group) is not None and group.policy == "anti-affinity":
            most = group.max_per_host
        if group is not None and group.policy == "affinity":  # all of them on one host
            amounts, count = amounts * count, 1
        hosts = np.zeros(len(cloud.free), np.bool_)
        hosts[search.positions] = accepted
        position = self.scheduler.source.position
        hosts[[at for root in question.refused if (at := position(root)) is not None]] = False
        return RoomDemand(amounts, hosts, count, most)

    async def _read_more(self, question: _Question, cloud: CloudState, demand: RoomDemand, most: int) -> bool:
        """Read the instances of the `most` hosts that lack the least, except hosts read before; return False
        if all were read before.
        """
        lacking = (np.maximum(demand.amounts - cloud.free, 0.0) / cloud.scale).sum(axis=1)
        rows = np.flatnonzero(demand.accepted & (cloud.whole >= demand.amounts).all(axis=1))
        rows = rows[np.argsort(lacking[rows], kind="stable")][:most]
        host_at = {host.position: host for host in self.scheduler.source.hosts()}
        hosts = [host_at[row] for row in rows.tolist() if row in host_at]
        new = [host for host in hosts if host.uuid not in question.reading.hosts]
        await question.reading.read(new)
        return bool(new)

    def _checked(self, question: _Question, plan: RoomPlan) -> RoomPlanned | None:
        """Return the answer if all moves and builds of a plan would find their hosts now; else None. A host
        that a move or build would not get is then excluded in `question`.
        """
        host_at = {host.position: host for host in self.scheduler.source.hosts()}
        if any(at not in host_at for move in plan.moves for at in (move.source, move.destination)):
            return None  # hosts were deleted
        steps = [question.reading.step(move, host_at) for move in plan.moves]
        targets = Tally(host_at[target].uuid for target in plan.targets)
        placed = self._placed(question, steps, targets)
        if placed is None:
            return None
        budget, hosts = question.asked.budget, plan.hosts
        why = WHY[plan.code].format(hosts=hosts, budget=budget) if plan.code else ""
        return RoomPlanned(code=plan.code, why=why, moves=tuple(steps), targets=placed, hosts=hosts)

    def _placed(
        self, question: _Question, steps: Sequence[PlannedStep], targets: Tally[Id]
    ) -> tuple[PlacedThere, ...] | None:
        supposing, source = self._what_ifs.supposing(), self.scheduler.source
        choosing, released = self.scheduler.choosing(supposing), list[Allocations]()
        try:
            for step in steps:
                order = question.reading.orders[step.build]
                if not picked(choosing, self.scheduler, only_on(order, [step.destination])):
                    question.reading.forbidden.setdefault(step.build, set()).add(step.destination)
                    return None
                start = question.reading.starts[step.build]
                if start.source is not None:
                    released.append(start.source.choice.allocations)
                    source.withdraw(released[-1])
            return self._builds(question, _ignoring_closure(choosing, question), targets)
        finally:
            supposing.suspend()
            for allocations in released:
                source.reserve(allocations)

    def _builds(
        self, question: _Question, choosing: Choosing, targets: Tally[Id]
    ) -> tuple[PlacedThere, ...] | None:
        """Place the instances on their targets, as if the moves were done; None if any does not fit."""
        order, placed, first = question.order, list[PlacedThere](), 0
        affinity = (group := order.alternatives[0].group) is not None and group.policy == "affinity"
        for root, several in targets.items():
            several = len(order.instances) if affinity else several
            some = structs.replace(order, instances=order.instances[first : first + several])
            [chosen] = choosing.choose([_unreserved(only_on(some, [root]))])
            if len(chosen.picks) < several:
                question.refused.add(root)
                return None
            way = chosen.picks[0].choices[0]
            placed.append(
                PlacedThere(root=root, host=way.host, cell=way.cell, zone=way.zone, instances=several)
            )
            first += several
        return tuple(placed)


def _ignoring_closure(choosing: Choosing, question: _Question) -> Choosing:
    return choosing.without("enabled") if question.asked.roots else choosing


def picked(choosing: Choosing, scheduler: Scheduler, order: Order) -> bool:
    """Return whether a move gets a host now. If it does, its capacity on the host is reserved as a
    hypothetical choice.
    """
    [narrowed] = scheduler.narrow([order])
    [chosen] = choosing.choose([_unreserved(narrowed)])
    return bool(chosen.picks)


def _unreserved(order: Order) -> Order:
    return structs.replace(order, request=structs.replace(order.request, alternates=0, at_least=0))


def _on_closed(order: Order, roots: Sequence[Id]) -> Order:
    """Return a copy of an order that may use only the given hosts. Its plan has disabled them for other
    requests, so the order ignores that they are disabled.
    """
    [alternative] = only_on(order, roots).alternatives
    forbidden = {*alternative.question.root_forbidden, FORCED_DOWN} - {DISABLED}
    question = structs.replace(alternative.question, root_forbidden=tuple(sorted(forbidden)))
    return structs.replace(order, alternatives=(replace(alternative, question=question),))
