"""Answers the query for moves that make room: plans them on arrays, and checks each plan by the evaluation
that would place its moves and builds.
"""

import asyncio
from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_

import numpy as np
from msgspec import structs
from prometheus_client import Counter

from bus.candidates import Bools, CandidateSearch
from bus.vocabulary import Id
from features.moves.placing import MovePlacing
from features.planning.cloud_reading import CloudReading, of_any_source, usable_weigher
from features.planning.core.make_room import RoomPlan, plan_room
from features.planning.core.moved_cloud import CloudState
from features.planning.core.room_demand import RoomDemand, RoomPart
from features.planning.joint_rules import JointPlacing
from features.planning.messages import PlannedStep, PlanRoom, RoomPlanned
from features.what_if.messages import PlacedThere
from features.what_if.questions import PATIENCE, WhatIfs
from scheduler_worker.core.extension import shape_of
from scheduler_worker.extension import (
    Alternative,
    CellQueries,
    Choosing,
    Order,
    OrderSection,
    Pick,
    Searching,
    accepting,
    on_closed,
    only_on,
    sections_of,
)

PORTIONS = (64, 256, 1024)  # targets of which instances are read, if fewer give no plan
DEEPER = 64  # hosts that could be made free for an instance that leaves a target
CHECKS = 40  # plans that are checked for one question
WHY = {
    "no_host": "no host would fit the flavor, even if it were empty",
    "no_more": "of {hosts} hosts that would fit it if they were empty, none may get a further build:"
    " server group or topology",
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
    """Plans moves after which a request fits."""

    def __init__(
        self, what_ifs: WhatIfs, placing: MovePlacing, cells: CellQueries, joint: JointPlacing
    ) -> None:
        self._what_ifs = what_ifs
        self._placing = placing
        self._cells = cells
        self._joint = joint

    @property
    def scheduler(self) -> Searching:
        return self._placing.scheduler

    def reading(self, cold: bool, fixed: Sequence[Id]) -> CloudReading:
        """Return the present state of hosts and instances, in which these instances stay."""
        lookups, cells = self._placing.lookups, self._cells
        return CloudReading(self.scheduler, lookups, cells, cold, frozenset(fixed), self._joint)

    async def answer(self, asked: PlanRoom) -> RoomPlanned:
        """Return a plan, or why there is none; count it for the metrics."""
        answer = await self._answer(asked)
        PLANS.labels(answer.code or ("planned" if answer.moves else "fits")).inc()
        return answer

    async def _answer(self, asked: PlanRoom) -> RoomPlanned:
        try:
            async with asyncio.timeout(PATIENCE), self._what_ifs.lock:
                await self.scheduler.source.fresh()  # it includes what earlier moves of the plan released
                [order] = await self.scheduler.resolved([asked.request])
                if order.verdict.invalid or not order.attempts:
                    return RoomPlanned(code="unreadable", why=order.verdict.invalid)
                # Slots that builds may draw from are no reason to plan on their hosts only.
                required = [
                    attempt
                    for attempt in order.attempts
                    if not any(each.restriction and each.restriction.is_optional for each in attempt)
                ]
                order = structs.replace(order, attempts=tuple(required[:1]))
                if asked.within:
                    inside = _only_inside(order, self._inside(asked.within))
                    if inside is None:
                        return RoomPlanned(code="no_host", why=_no_host_in(asked.within))
                    order = inside
                order = on_closed(order, asked.roots) if asked.roots else order
                question = _Question(asked, order, self.reading(asked.cold, asked.fixed))
                return await self._plan(question)
        except TimeoutError:
            return RoomPlanned(code="changing", why=f"no plan was found within {PATIENCE:g} s")

    def _inside(self, within: Mapping[str, str]) -> set[Id]:
        """Return the roots of the hosts that have all given labels."""
        source = self.scheduler.source
        hosts = np.ones(source.size, np.bool_)
        for level, label in within.items():
            domains, labels = source.labels(level)
            hosts &= (domains > 0) & np.isin(domains, [at for at, each in enumerate(labels) if each == label])
        return {host.uuid for host in source.hosts() if hosts[host.position]}

    async def _plan(self, question: _Question) -> RoomPlanned:
        portion, plan = iter(PORTIONS), RoomPlan(code="no_host")
        for _ in range(CHECKS):
            found = self._read(question)
            if found is None:
                break
            cloud, demand = found
            plan = await asyncio.to_thread(plan_room, cloud, demand, question.asked.budget)
            most = next(portion, 0) if plan.code and plan.hosts else 0
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
        """Return the hosts and the builds to fit; None if no host, even if empty, would accept a build."""
        choosing, order = self.scheduler.choosing(self._what_ifs.supposing()), question.order
        ignoring_closure = _ignoring_closure(choosing, question)
        flavors = [part.alternative for part in _parts(order)]
        found = [accepting(ignoring_closure, flavor) for flavor in flavors]
        searches = [each for each in found if each is not None and each[1].any()]
        if len(searches) < len(flavors):
            return None
        pools = set[str]().union(*self.scheduler.source.sharing.values())
        needed = {name for flavor in flavors for name in flavor.asked}
        held = {name for order in question.reading.orders.values() for name in order.preferred.asked}
        classes = sorted(needed.union(held) - pools)
        weigher, shapes = usable_weigher(self.scheduler.policy), [shape_of(each.question) for each in flavors]
        found_hosts = [search for search, _ in searches]
        cloud = question.reading.state(choosing, classes, found_hosts, weigher, shapes)
        demand = self._demand(question, ignoring_closure, classes, searches)
        return (cloud, demand) if all(part.accepted.any() for part in demand.parts) else None

    def _demand(
        self,
        question: _Question,
        choosing: Choosing,
        classes: Sequence[str],
        searches: Sequence[tuple[CandidateSearch, Bools]],
    ) -> RoomDemand:
        order, source = question.order, self.scheduler.source
        refused = [at for root in question.refused if (at := source.position(root)) is not None]
        parts = []
        for part, (search, accepted) in zip(_parts(order), searches, strict=True):
            asked, hosts = part.alternative.asked, np.zeros(source.size, np.bool_)
            hosts[search.positions] = accepted
            hosts[refused] = False
            amounts = np.array([float(asked.get(name, 0)) for name in classes])
            shape = shape_of(part.alternative.question)
            parts.append(RoomPart(amounts, hosts, len(part.instances), (shape,)))
        joint = self._joint.of(order.preferred)
        if joint.on_one_host(order.preferred):
            amounts = np.sum([part.amounts * part.count for part in parts], axis=0)
            hosts = np.logical_and.reduce([part.accepted for part in parts])
            shapes = tuple(shape for part in parts for shape in part.shapes * part.count)
            return RoomDemand([RoomPart(amounts, hosts, shapes=shapes)])
        return RoomDemand(parts, *joint.domains(order.preferred, choosing))

    async def _read_more(self, question: _Question, cloud: CloudState, demand: RoomDemand, most: int) -> bool:
        """Read the instances of the `most` hosts with the best chances as targets, and of hosts that could be
        made free for known instances; return False if all were read before. In a small cloud all hosts are
        read at once.
        """
        host_at = {host.position: host for host in self.scheduler.source.hosts()}
        if len(host_at) <= PORTIONS[0]:
            rows = list(host_at)
        else:
            position = self.scheduler.source.position
            via = [at for root in question.asked.via if (at := position(root)) is not None]
            targets = demand.in_reading_order(cloud)[:most].tolist()
            rows = [*dict.fromkeys([*via, *targets, *_nearest_destinations(cloud)])]
        hosts = [host_at[row] for row in rows if row in host_at]
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
        placed = self._placed(question, steps, [host_at[target].uuid for target in plan.targets])
        if placed is None:
            return None
        budget, hosts = question.asked.budget, plan.hosts
        reason = "no_more" if plan.code == "no_host" and hosts else plan.code
        why = WHY[reason].format(hosts=hosts, budget=budget) if plan.code else ""
        return RoomPlanned(
            code=plan.code, why=why, moves=tuple(steps), targets=placed, hosts=hosts, unproven=plan.unproven
        )

    def _placed(
        self, question: _Question, steps: Sequence[PlannedStep], targets: Sequence[Id]
    ) -> tuple[PlacedThere, ...] | None:
        supposing, moved = self._what_ifs.supposing(), dict[Id, Pick]()
        choosing = self.scheduler.choosing(supposing)
        with supposing.active(), self.scheduler.source.packing.trying() as trial:
            for step in steps:
                order, before = question.reading.orders[step.build], moved.get(step.build)
                order = order if before is None else of_any_source(order)
                pick = picked(choosing, self.scheduler, only_on(order, [step.destination]))
                if pick is None:
                    question.reading.forbidden.setdefault(step.build, set()).add(step.destination)
                    return None
                moved[step.build] = pick
                start = question.reading.starts[step.build]
                if before is not None:
                    supposing.drop(before.reservation)
                elif start.source is not None:
                    trial.release(start.source.choice.allocations)
            return self._builds(question, _ignoring_closure(choosing, question), targets)

    def _builds(
        self, question: _Question, choosing: Choosing, targets: Sequence[Id]
    ) -> tuple[PlacedThere, ...] | None:
        """Place the instances on their targets, as if the moves were done; None if any does not fit."""
        order, placed = question.order, list[PlacedThere]()
        instances = [instance for part in _parts(order) for instance in part.instances]
        if self._joint.of(order.preferred).on_one_host(order.preferred):
            targets = [root for root in targets for _ in instances]
        on = dict[Id, list[Id]]()
        for instance, root in zip(instances, targets, strict=False):
            on.setdefault(root, []).append(instance)
        for root, some in on.items():
            part, several = structs.replace(order, instances=tuple(some)), len(some)
            [chosen] = choosing.choose([_unreserved(only_on(part, [root]))])
            if len(chosen.picks) < several:
                question.refused.add(root)
                return None
            way = chosen.picks[0].choices[0]
            placed.append(
                PlacedThere(root=root, host=way.host, cell=way.cell, zone=way.zone, instances=several)
            )
        return tuple(placed)


def _ignoring_closure(choosing: Choosing, question: _Question) -> Choosing:
    return choosing.without("enabled") if question.asked.roots else choosing


def picked(choosing: Choosing, scheduler: Searching, order: Order) -> Pick | None:
    """Return the host that a move gets now, with its capacity reserved as a hypothetical choice; None if it
    gets none.
    """
    [narrowed] = scheduler.limit([order])
    [chosen] = choosing.choose([_unreserved(narrowed)])
    return chosen.picks[0] if chosen.picks else None


def _nearest_destinations(cloud: CloudState) -> list[int]:
    """Return the hosts that lack the least for an instance that is known: other instances could leave them
    for it. At most DEEPER hosts, and for DEEPER kinds of instances, because each compares all hosts.
    """
    kinds = {
        (each.amounts.tobytes(), id(each.accepted)): each
        for some in cloud.instances.values()
        for each in some
    }
    least = np.full(len(cloud.packing), np.inf)
    for each in list(kinds.values())[:DEEPER]:
        fits_empty = each.accepted & cloud.packing.fits_empty(each.amounts)
        lack = np.where(fits_empty, cloud.packing.distances(each.amounts), np.inf)
        least = np.where(lack > 0, np.minimum(least, lack), least)
    rows = np.flatnonzero(np.isfinite(least))
    nearest: list[int] = rows[np.argsort(least[rows], kind="stable")][:DEEPER].tolist()
    return nearest


def _unreserved(order: Order) -> Order:
    request = structs.replace(order.request, at_least=0)
    return structs.replace(order, request=request, alternates=0)


def _only_inside(order: Order, inside: set[Id]) -> Order | None:
    """Return a copy of an order that may use only hosts in `inside`; None if it may use none of them."""

    def restricted(alternative: Alternative) -> Alternative:
        roots = inside.intersection(alternative.question.roots) if alternative.question.roots else inside
        question = structs.replace(alternative.question, roots=tuple(sorted(roots)))
        return replace(alternative, question=question)

    order = order.changed(restricted)
    return order if all(each.question.roots for each in order.alternatives) else None


def _no_host_in(within: Mapping[str, str]) -> str:
    labels = ", ".join(f"{level}={label}" for level, label in sorted(within.items()))
    return f"no host that the request permits has the label {labels}"


def _parts(order: Order) -> list[OrderSection]:
    """Return the order's instances by flavor, largest flavors first, because these fit the fewest hosts."""
    largest = reduce(or_, [Tally(alternative.asked) for alternative in order.alternatives])

    def size(part: OrderSection) -> float:
        asked = part.alternative.asked
        return sum(amount / largest[name] for name, amount in asked.items() if amount)

    return sorted(sections_of(order.request, order.current, order.instances), key=size, reverse=True)
