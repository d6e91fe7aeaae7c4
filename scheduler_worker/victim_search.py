"""Finds instances whose deletion makes a request fit: reads the instances of full hosts, chooses victims on
arrays, and checks them by the evaluation that places the request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid5

import numpy as np
from msgspec import structs

from bus.candidates import Bools, Floats, PlacedHost
from bus.claims import holder_consumer
from bus.messages import BuildRequested
from bus.moves import MoveRequested
from bus.preemption import REQUEUE_WAIT, BuildPreempted, FindPreemptions, Victim
from bus.queries import Instance
from bus.resources import FindAllocations
from bus.vocabulary import Allocations, Id, portions
from scheduler_worker.cloud_reading import HostArrays, accepting, active_instances, amounts_on_host, only_on
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.events import Chosen, Located, NoVictims
from scheduler_worker.core.order import Begins, Order
from scheduler_worker.core.scale import HasReservations, Pick
from scheduler_worker.core.victims import CrowdedHost, Replaceable, VictimChoice, choose_victims
from scheduler_worker.dependencies import PLACEMENT_ASKED
from scheduler_worker.placing import Scheduler
from scheduler_worker.priorities import Priorities
from scheduler_worker.queries import CellQueries

PORTIONS = (64, 1024)  # hosts whose instances are read, if fewer give no victims
CHECKS = 20  # hosts that may refuse the request although its amounts fit
NONE_FIT = "the instances of lower priority do not free enough capacity on any host"


@dataclass(eq=False)
class _Reading:
    """The instances on some hosts that may be preempted, as they were when read."""

    hosts: set[str] = field(default_factory=set)
    on: dict[str, list[Victim]] = field(default_factory=dict)  # root → its instances
    held: dict[Id, Allocations] = field(default_factory=dict)


@dataclass(eq=False)
class _Draft:
    """The instances placed so far, as if their victims were deleted."""

    picks: list[Pick] = field(default_factory=list)
    victims: list[tuple[Victim, ...]] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)  # hosts that do not fit an instance after all
    used: set[Id] = field(default_factory=set)

    def add(self, pick: Pick, new: Sequence[Victim]) -> None:
        """Place an instance. It shares the victims of earlier instances on its host."""
        earlier = [
            some for other, some in zip(self.picks, self.victims, strict=True) if other.root == pick.root
        ]
        victims = (*(earlier[-1] if earlier else ()), *new)
        self.picks.append(structs.replace(pick, choices=pick.choices[:1]) if victims else pick)
        self.victims.append(victims)


def bars_preemption(request: BuildRequested) -> str:
    """Return why a request preempts nothing whatever its class permits; empty if it may preempt.

    The hosts of such instances depend on each other, or their capacity is reserved: victims of one host
    after the other would not be minimal.
    """
    if request.roles:
        return "requests with roles do not preempt"
    if request.topology.levels:
        return "requests with a topology do not preempt"
    if request.hints.reservation:
        return "requests that draw from a reservation do not preempt"
    if request.hints.group is not None and len(request.instances) > 1:
        return "several members of a server group do not preempt"
    return ""


class VictimSearch:
    """Finds instances to preempt for requests that fit no host."""

    def __init__(self, scheduler: Scheduler, classes: Priorities, cells: CellQueries) -> None:
        self._scheduler = scheduler
        self._classes = classes
        self._cells = cells

    def on_trial(self, scheduler: Scheduler, classes: Priorities) -> "VictimSearch":
        """Return a search with another policy and other priority classes, for one question."""
        return VictimSearch(scheduler, classes, self._cells)

    def permits(self, request: BuildRequested) -> bool:
        return self._classes.of(request) is not None and not bars_preemption(request)

    def permitted(self, begun: Sequence[Begins]) -> Sequence[Begins]:
        """Return orders with the priority class by which they may preempt instances, if any."""
        if not any(order.request.priority for order, _ in begun):
            return begun
        return [(self._permitted(order), event) for order, event in begun]

    def _permitted(self, order: Order) -> Order:
        preempts = self._classes.of(order.request)
        if preempts is not None and (why := bars_preemption(order.request)):
            return structs.replace(order, spares=why)
        return structs.replace(order, preempts=preempts)

    async def of_located(self, order: Order, located: Located) -> Located:
        """Return the hosts of instances with the victims that they preempted before the request was delivered
        again."""
        if not order.request.priority or order.move is not None:
            return located
        asked = FindPreemptions(by=tuple(located.places))
        victims: dict[Id, tuple[Victim, ...]] = {}
        for each in (await self._scheduler.placement.preemptions(asked)).preemptions:
            victims[each.by] = (*victims.get(each.by, ()), each.victim)
        return structs.replace(located, victims=victims)

    async def requeue(self, preempted: BuildPreempted) -> MoveRequested | None:
        """Request another host for an instance that was shelved for a build of higher priority."""
        if not preempted.requeued:
            return None
        return MoveRequested(
            move=str(uuid5(UUID(preempted.build), f"requeued after {preempted.by}")),
            build=preempted.build,
            kind="unshelve",
            cell=preempted.cell,
            wait=REQUEUE_WAIT,
            priority=preempted.priority,
            since=preempted.requested,
        )

    async def find(self, order: Order, supposing: HasReservations | None = None) -> Chosen | NoVictims:
        """Return hosts for all instances of an order with their victims, or why there are none. With
        `supposing`, the choice is hypothetical."""
        free = [index for index, each in enumerate(order.alternatives) if each.draw is None]
        if not free:
            return NoVictims(NONE_FIT)
        order = structs.replace(order, alternative_index=free[0])
        reading = _Reading()
        for most in PORTIONS:
            new = self._nearest(order, reading, most, supposing)
            if not new:
                break
            await self._read(new, reading, order.request.priority)
            draft = self._draft(order, reading, supposing)
            if draft is not None:
                return Chosen(tuple(draft.picks), victims=tuple(draft.victims), alternative_index=free[0])
        return NoVictims(NONE_FIT)

    def _nearest(
        self, order: Order, reading: _Reading, most: int, supposing: HasReservations | None
    ) -> list[PlacedHost]:
        """Return hosts to read: of the hosts that would fit if they were empty, those that lack the least."""
        found = self._arrays(order, self._scheduler.choosing(supposing))
        if found is None:
            return []
        arrays, demand, accepted = found
        scale = np.maximum(arrays.whole.max(axis=0, initial=0.0), 1.0)
        lacking = (np.maximum(demand - arrays.free, 0.0) / scale).sum(axis=1)
        rows = np.flatnonzero(accepted)
        rows = rows[np.argsort(lacking[rows], kind="stable")][:most]
        host_at = {host.position: host for host in self._scheduler.source.hosts()}
        hosts = [host_at[row] for row in rows.tolist() if row in host_at]
        return [host for host in hosts if host.uuid not in reading.hosts and host.cell]

    def _arrays(self, order: Order, choosing: Choosing) -> tuple[HostArrays, Floats, Bools] | None:
        alternative = order.alternative
        found = accepting(choosing, alternative)
        if found is None:
            return None
        search, mask = found
        pools = set[str]().union(*self._scheduler.source.sharing.values())
        classes = sorted(name for name in alternative.asked if name not in pools)
        arrays = HostArrays(self._scheduler.source.size, classes)
        arrays.put(search)
        demand, accepted = arrays.vector(alternative.asked), np.zeros(len(arrays.free), np.bool_)
        accepted[search.positions] = mask
        return arrays, demand, accepted & (arrays.whole >= demand).all(axis=1)

    async def _read(self, hosts: Sequence[PlacedHost], reading: _Reading, below: int) -> None:
        reading.hosts |= {host.uuid for host in hosts}
        instances = await active_instances(self._cells, hosts)
        found = [each for each in instances if each.priority < below]
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
        its_class = self._classes.by_value.get(instance.priority)
        return Victim(
            build=instance.build,
            generation=instance.generation or 0,
            attempt=instance.attempt,
            holder=holder_consumer(instance.build, instance.attempt),
            priority=instance.priority,
            grace=its_class.grace if its_class else 0.0,
            requeue=its_class.requeue if its_class else False,
        )

    def _draft(self, order: Order, reading: _Reading, supposing: HasReservations | None) -> _Draft | None:
        """Place all instances of an order, without await; None if any instance fits nowhere."""
        source, draft, released = self._scheduler.source, _Draft(), list[Allocations]()
        choosing = self._scheduler.choosing(supposing)
        complete = False
        try:
            complete = all(
                self._place(order, id_, choosing, reading, draft, released) for id_ in order.instances
            )
        finally:
            for allocations in released:
                source.reserve(allocations)
            if not complete:
                for pick in draft.picks:
                    (supposing or self._scheduler.pending).drop(pick.reservation)
        return draft if complete else None

    def _place(
        self,
        order: Order,
        instance: Id,
        choosing: Choosing,
        reading: _Reading,
        draft: _Draft,
        released: list[Allocations],
    ) -> bool:
        request = structs.replace(order.request, at_least=0, alternates=0)
        alone = structs.replace(order, instances=(instance,), request=request)
        source = self._scheduler.source
        [chosen] = choosing.choose(self._scheduler.narrow([alone]))
        if chosen.picks:
            draft.add(chosen.picks[0], ())
            return True
        for _ in range(CHECKS):
            choice = self._choice(order, choosing, reading, draft)
            if choice is None:
                return False
            root = next(root for root in reading.on if source.position(root) == choice.at)
            builds = {each.build for each in choice.victims}
            for build in builds:
                source.withdraw(reading.held[build])
            [chosen] = choosing.choose([only_on(alone, [root])])
            if chosen.picks:
                released += [reading.held[build] for build in builds]
                draft.used |= builds
                draft.add(chosen.picks[0], [each for each in reading.on[root] if each.build in builds])
                return True
            for build in builds:
                source.reserve(reading.held[build])
            draft.refused.add(choice.at)
        return False

    def _choice(
        self, order: Order, choosing: Choosing, reading: _Reading, draft: _Draft
    ) -> VictimChoice | None:
        found = self._arrays(order, choosing)
        if found is None:
            return None
        arrays, demand, accepted = found
        sharing, hosts = self._scheduler.source.sharing, list[CrowdedHost]()
        for root, victims in reading.on.items():
            at = self._scheduler.source.position(root)
            if at is None or at in draft.refused or not accepted[at]:
                continue
            instances = [
                Replaceable(
                    each.build,
                    each.priority,
                    arrays.vector(amounts_on_host(reading.held[each.build], sharing)),
                )
                for each in victims
                if each.build not in draft.used
            ]
            hosts.append(CrowdedHost(at, arrays.free[at], instances))
        scale = np.maximum(arrays.whole.max(axis=0, initial=0.0), 1.0)
        return choose_victims(hosts, demand, scale)
