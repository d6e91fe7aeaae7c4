"""Finds instances to delete so that a request fits: reads the instances of full hosts, chooses victims on
arrays, and checks them by the evaluation that places the request.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
from msgspec import structs

from bus.candidates import Bools, PlacedHost
from bus.claims import holder_consumer
from bus.messages import BuildRequested
from bus.queries import Instance
from bus.resources import FindAllocations
from bus.vocabulary import Allocations, Id, common, joined, portions
from features.preemption.core.domain_limits import DomainLimits, LimitsOf
from features.preemption.core.preempting_claims import Replaces
from features.preemption.core.preempting_parts import PreemptingParts
from features.preemption.core.victims import SLACK, CrowdedHost, Replaceable, VictimChoice, choose_victims
from features.preemption.messages import PREEMPTIONS, FindPreemptions, PriorityClass, Victim
from features.preemption.priorities import Priorities
from features.waiting.messages import priority_of
from scheduler_worker.extension import (
    PLACEMENT_ASKED,
    CellQueries,
    Choosing,
    Chosen,
    ClaimPart,
    Fallback,
    HasReservations,
    HostArrays,
    Order,
    Pick,
    RuleError,
    Searching,
    active_instances,
    amounts_on_host,
    only_on,
    sections_of,
)

PORTIONS = (64, 1024)  # hosts whose instances are read: first per instance; then, if none fit, more
CHECKS = 20  # most hosts that filters may refuse, with the chosen victims, before the search ends
NONE_FIT = "the instances of lower priority do not free enough capacity on any host"


@dataclass(eq=False)
class _Reading:
    """The instances on some hosts that may be preempted, as they were when read."""

    hosts: set[str] = field(default_factory=set)
    on: dict[str, list[Victim]] = field(default_factory=dict)  # root → instances that may be preempted
    held: dict[Id, Allocations] = field(default_factory=dict)


@dataclass(eq=False)
class _Draft:
    """The instances placed so far, as if their victims were deleted."""

    released: Sequence[Allocations]  # allocations of the victims
    picks: dict[Id, Pick] = field(default_factory=dict)
    victims: dict[Id, tuple[Victim, ...]] = field(default_factory=dict)

    def add(self, instance: Id, pick: Pick, victims: tuple[Victim, ...]) -> None:
        """Record an instance as placed on the host of `pick`, where `victims` are deleted before. Instances
        on one host have the same victims.
        """
        self.picks[instance] = structs.replace(pick, choices=pick.choices[:1]) if victims else pick
        self.victims[instance] = victims

    @property
    def used(self) -> Allocations:
        """Return the part of the victims' allocations that the instances take."""
        taken = (pick.choices[0].allocations for pick in self.picks.values())
        return common(reduce(joined, taken, {}), reduce(joined, self.released, {}))

    def chosen(self, order: Order, attempt: int, budget: int) -> Chosen:
        picks = []
        for instance in order.instances:
            pick, victims = self.picks[instance], self.victims[instance]
            part = Replaces(victims, pick.choices[0].cell, priority_of(order.request.parts), budget)
            picks.append(structs.replace(pick, parts=(part,)))
        return Chosen(tuple(picks), attempt=attempt)


@dataclass(eq=False)
class _Batch:
    """The victims of orders that are placed together, and the part of their capacity that is used again."""

    victims: set[Id] = field(default_factory=set)
    used: list[Allocations] = field(default_factory=list)


def bars_preemption(request: BuildRequested) -> str:
    """Return why a request preempts nothing whatever its class permits; empty if it may preempt."""
    draws = any(part.uses_held_capacity for part in request.parts)
    return "requests that draw from a reservation do not preempt" if draws else ""


@dataclass(frozen=True, slots=True)
class Searched:
    """The last search for victims of an order: no victims were found."""

    after: int  # number of rounds with refused claims before the search
    why: str  # why no victims were found


class VictimSearch(Fallback):
    """The fallback that finds instances to preempt for requests that fit no host."""

    def __init__(self, classes: Priorities, cells: CellQueries) -> None:
        self.limits_of: LimitsOf = _without_limits  # a join may replace it
        self.requeues = False  # whether a join requests hosts for preempted instances again
        self._classes = classes
        self._cells = cells

    def on_trial(self, classes: Priorities) -> "VictimSearch":
        """Return a search with other priority classes, for one question."""
        search = VictimSearch(classes, self._cells)
        search.limits_of, search.requeues = self.limits_of, self.requeues
        return search

    def polls(self, request: BuildRequested) -> bool:
        return self._classes.of(request) is not None and not bars_preemption(request)

    def class_of(self, request: BuildRequested) -> PriorityClass | None:
        """Return the class that permits a request to preempt instances; None: it may not."""
        return None if bars_preemption(request) else self._classes.of(request)

    def class_of_priority(self, priority: int) -> PriorityClass | None:
        """Return the priority class of this value; None if there is none."""
        return self._classes.by_value.get(priority)

    def why_barred(self, request: BuildRequested) -> str:
        """Return why a request preempts nothing although its class permits it; empty if it may."""
        return "" if self._classes.of(request) is None else bars_preemption(request)

    async def handle(self, orders: Sequence[Order], placing: Searching) -> Sequence[Chosen | Order]:
        """Return hosts with victims for orders that fit no host. No instance is a victim of two orders."""
        batch = _Batch()
        return [await self._handled(order, placing, batch) for order in orders]

    async def _handled(self, order: Order, placing: Searching, batch: "_Batch") -> Chosen | Order:
        request = order.request
        if not priority_of(request.parts) or not order.purpose.boots or not order.verdict.shortages:
            return order
        why = self.why_barred(request)
        why = next((each.why for each in order.tried.by_rules), why)
        if not why:
            if not order.purpose.retires or self.class_of(request) is None:
                return order
            searched, refused = order.part(Searched), order.tried.refused_rounds
            if searched is None or searched.after != refused:
                found = await self.find(order, placing, batch=batch)
                if isinstance(found, Chosen):
                    return found
                searched = Searched(refused, found)
                order = order.with_part(searched)
            why = searched.why
        return order.with_obstacle(f"{order.verdict.obstacle}; no preemption: {why}")

    async def parts_of(
        self, order: Order, instances: Sequence[Id], placing: Searching
    ) -> Mapping[Id, tuple[ClaimPart, ...]]:
        """Return the victims of instances that an earlier delivery of the request placed."""
        if not priority_of(order.request.parts) or not order.purpose.boots:
            return {}
        victims: dict[Id, tuple[Victim, ...]] = {}
        asked = FindPreemptions(by=tuple(instances))
        for each in (await placing.placement.ask(PREEMPTIONS)(asked)).preemptions:
            victims[each.by] = (*victims.get(each.by, ()), each.victim)
        return {instance: (Replaces(some),) for instance, some in victims.items()}

    async def find(
        self,
        order: Order,
        placing: Searching,
        supposing: HasReservations | None = None,
        batch: "_Batch | None" = None,
    ) -> Chosen | str:
        """Return hosts for all instances of an order with their victims, or why no victims can be found. With
        `supposing`, the choice is hypothetical.
        """
        permitted_by = self.class_of(order.request)
        budget = 0 if permitted_by is None else permitted_by.budget
        search = _Search(placing, self._cells, self)
        return await search.find(order, budget, supposing, batch or _Batch())


def _without_limits(choosing: Choosing, order: Order) -> DomainLimits | None:
    return None


class _Search:
    """A search for the victims of orders."""

    def __init__(self, scheduler: Searching, cells: CellQueries, fallback: VictimSearch) -> None:
        self._scheduler = scheduler
        self._cells = cells
        self._fallback = fallback

    async def find(
        self, order: Order, budget: int, supposing: HasReservations | None, batch: _Batch
    ) -> Chosen | str:
        free = [
            index
            for index, attempt in enumerate(order.attempts)
            if all(each.restriction is None for each in attempt)
        ]
        if not free:
            return NONE_FIT
        undrawn = structs.replace(order, attempts=tuple([order.attempts[at] for at in free]), attempt=0)
        reading, several = _Reading(), min(len(order.instances), 4)
        for most in (PORTIONS[0] * several, *PORTIONS[1:]):
            new = self._nearest(undrawn, reading, most, supposing)
            if not new:
                break
            await self._read(new, reading, priority_of(order.request.parts), batch.victims)
            try:
                with self._scheduler.source.packing.releasing(*batch.used):
                    draft = self._draft(undrawn, reading, supposing)
            except RuleError as failed:
                return str(failed)
            if draft is not None:
                batch.victims.update(each.build for some in draft.victims.values() for each in some)
                batch.used.append(draft.used)
                return draft.chosen(order, free[0], budget)
        return NONE_FIT

    def _nearest(
        self, order: Order, reading: _Reading, most: int, supposing: HasReservations | None
    ) -> list[PlacedHost]:
        """Return the hosts to read next: the `most` hosts that lack the least among hosts that would fit if
        empty, without the hosts read before.
        """
        found = self._parts(order, self._scheduler.choosing(supposing))
        if found is None:
            return []
        host_at = {host.position: host for host in self._scheduler.source.hosts()}
        hosts = [host_at[row] for row in found.nearest()[:most] if row in host_at]
        return [host for host in hosts if host.uuid not in reading.hosts and host.cell]

    def _parts(self, order: Order, choosing: Choosing) -> PreemptingParts | None:
        parts = sections_of(order.request, order.current, order.instances)
        alternatives = [part.alternative for part in parts]
        pools = set[str]().union(*self._scheduler.source.sharing.values())
        classes = sorted({name for each in alternatives for name in each.asked} - pools)
        arrays = HostArrays(self._scheduler.source.size, classes)
        accepted = np.array([arrays.accepting(choosing, each) for each in alternatives])
        demands = np.array([arrays.vector(each.asked) for each in alternatives])
        accepted &= np.array([arrays.fits_empty(demand) for demand in demands])
        limits = self._fallback.limits_of(choosing, order) or DomainLimits.none(len(arrays.free))
        accepted &= limits.is_open
        if not accepted.any(axis=1).all():
            return None
        return PreemptingParts(parts, limits, arrays, demands, accepted)

    async def _read(
        self, hosts: Sequence[PlacedHost], reading: _Reading, below: int, excluding: Set[Id]
    ) -> None:
        reading.hosts |= {host.uuid for host in hosts}
        instances = await active_instances(self._cells, hosts)
        found = [
            each for each in instances if priority_of(each.parts) < below and each.build not in excluding
        ]
        for part in portions(found, PLACEMENT_ASKED):
            asked = FindAllocations(consumers=tuple(each.build for each in part))
            consumers = (await self._scheduler.placement.allocations(asked)).consumers
            known = {each.id: each for each in consumers}
            for instance in part:
                held = known.get(instance.build)
                if held is None or held.generation != instance.generation or held.protected:
                    continue
                if held.type == "INSTANCE" and any(
                    "VCPU" in amounts for amounts in held.allocations.values()
                ):
                    reading.held[instance.build] = held.allocations
                    reading.on.setdefault(instance.root, []).append(self._victim(instance))

    def _victim(self, instance: Instance) -> Victim:
        its_class = self._fallback.class_of_priority(priority_of(instance.parts))
        return Victim(
            build=instance.build,
            generation=instance.generation or 0,
            attempt=instance.attempt,
            holder=holder_consumer(instance.build, instance.attempt),
            priority=priority_of(instance.parts),
            grace=its_class.grace if its_class else 0.0,
            requeue=its_class.requeue and self._fallback.requeues if its_class else False,
        )

    def _draft(self, order: Order, reading: _Reading, supposing: HasReservations | None) -> _Draft | None:
        """Place all instances of an order, without await; None if any instance fits nowhere. With
        `supposing`, no capacity stays taken.
        """
        [order] = self._scheduler.limit([order])
        choosing = self._scheduler.choosing(supposing)
        parts = self._parts(order, choosing)
        if parts is None:
            return None
        hosts = self._crowded(order, parts, choosing, reading)
        for _ in range(CHECKS):
            choices = choose_victims(list(hosts.values()), parts.packing, parts.wanted)
            if choices is None:
                return None
            victims = (each for choice in choices for each in choice.victims)
            draft = _Draft([reading.held[each.build] for each in victims])
            with self._scheduler.source.packing.releasing(*draft.released):
                refused = self._place(order, choosing, reading, choices, draft)
            if refused is None and supposing is None:
                return draft
            for instance, pick in draft.picks.items():
                (supposing or self._scheduler.pending).drop(pick.reservation)
                choosing.tentative.remove(pick.scope.key, instance)
            if refused is None:
                return draft
            part, at, accepted = refused
            most = hosts[at].most
            hosts[at] = replace(hosts[at], most=(*most[:part], accepted, *most[part + 1 :]))
        return None

    def _crowded(
        self, order: Order, parts: PreemptingParts, choosing: Choosing, reading: _Reading
    ) -> dict[int, CrowdedHost]:
        """Return the hosts that were read, by position, with their instances that may be preempted."""
        source, hosts = self._scheduler.source, dict[int, CrowdedHost]()
        accepted = parts.accepted & ((parts.lacking > SLACK) | self._fitting(order, parts, choosing, reading))
        positions = {at: root for root in reading.hosts if (at := source.position(root)) is not None}
        for at, root in sorted(positions.items()):
            instances = [
                Replaceable(
                    each.build,
                    each.priority,
                    parts.packing.vector(amounts_on_host(reading.held[each.build], source.sharing)),
                )
                for each in reading.on.get(root, ())
            ]
            hosts[at] = parts.crowded(at, instances, accepted[:, at])
        return hosts

    def _fitting(self, order: Order, parts: PreemptingParts, choosing: Choosing, reading: _Reading) -> Bools:
        """Return, by part and position, which of the read hosts fit an instance without victims."""
        fits = np.zeros_like(parts.accepted)
        order = only_on(order, reading.hosts)
        asked = sections_of(order.request, order.current, order.instances)
        for row, part in zip(fits, asked, strict=True):
            found = choosing.find(part.alternative)
            for index, at in enumerate(found.positions.tolist()):
                row[at] = found.admits(index) and bool(found.ways(index, 1, order.tried.avoided))
        return fits

    def _place(
        self,
        order: Order,
        choosing: Choosing,
        reading: _Reading,
        choices: Sequence[VictimChoice],
        draft: _Draft,
    ) -> tuple[int, int, int] | None:
        """Place all instances by the evaluation of requests. If a host refuses one, return its part and
        position, and how many instances of the part the host has accepted; None: all instances are placed.
        """
        source = self._scheduler.source
        parts = sections_of(order.request, order.current, order.instances)
        waiting = [list(part.instances) for part in parts]
        for choice in choices:
            root = next(root for root in reading.hosts if source.position(root) == choice.at)
            builds = {each.build for each in choice.victims}
            victims = tuple([each for each in reading.on.get(root, ()) if each.build in builds])
            for part, several in enumerate(choice.placed):
                for accepted in range(several):
                    instance = waiting[part].pop(0)
                    alone = _alone(only_on(order, [root]), instance)
                    [chosen] = choosing.choose([alone])
                    if not chosen.picks:
                        return part, choice.at, accepted
                    draft.add(instance, chosen.picks[0], victims)
        return None


def _alone(order: Order, instance: Id) -> Order:
    request = structs.replace(order.request, at_least=0)
    return structs.replace(order, instances=(instance,), request=request, alternates=0)
