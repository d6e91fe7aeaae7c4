"""Reads the instances of hosts that could move, and the free capacity of all hosts, for planners of moves."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_

import numpy as np
from msgspec import structs

from bus.amounts import totals
from bus.candidates import Bools, CandidateSearch, PlacedHost, SenselessQuery
from bus.errors import AnswerRefused, NoAnswer, Unroutable
from bus.host_health import DISABLED, FORCED_DOWN
from bus.moves import MoveRequested
from bus.queries import FindInstances, Instance
from bus.room import PlannedStep
from bus.vocabulary import Allocations, Id, portions
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.fitting import FoundHosts
from scheduler_worker.core.move_purpose import asked_by
from scheduler_worker.core.move_start import MoveStart
from scheduler_worker.core.moved_cloud import CloudState, MovableInstance, PlannedMove
from scheduler_worker.core.order import Order
from scheduler_worker.core.rule import Alternative
from scheduler_worker.dependencies import together
from scheduler_worker.move_lookups import MoveLookups
from scheduler_worker.placing import Scheduler
from scheduler_worker.queries import CellQueries

HOSTS_AT_ONCE = 32  # number of parallel queries for the instances of a host
DEVICES = frozenset({"PCI_DEVICE", "SRIOV_NET_VF", "VGPU", "VGPU_DISPLAY_HEAD", "PGPU", "FPGA"})
_PASSED_THROUGH = "CUSTOM_PCI"  # prefix of the classes of devices that a guest uses directly


@dataclass(eq=False)
class CloudReading:
    """The instances that were on some hosts when read; for each instance, the data for a move, and the order
    that finds its destination.
    """

    scheduler: Scheduler
    lookups: MoveLookups
    cells: CellQueries
    cold: bool  # instances are stopped to be moved (cold migration)
    fixed: Collection[Id]  # instances that must not move
    hosts: set[str] = field(default_factory=set)  # roots of the hosts whose instances were read
    starts: dict[Id, MoveStart] = field(default_factory=dict)
    orders: dict[Id, Order] = field(default_factory=dict)
    names: dict[Id, str] = field(default_factory=dict)
    forbidden: dict[Id, set[str]] = field(default_factory=dict)  # build → roots of hosts that refused it

    async def read(self, hosts: Sequence[PlacedHost]) -> None:
        """Read the instances of further hosts. Instances in cells that do not reply cannot move."""
        new = [host for host in hosts if host.uuid not in self.hosts and host.cell]
        self.hosts |= {host.uuid for host in hosts}
        found = await active_instances(self.cells, new)
        clock, kind = self.scheduler.clock, "migrate" if self.cold else "live"
        requests = [
            MoveRequested(move=clock.uuid(), build=each.build, kind=kind, cell=each.cell)  # type: ignore[arg-type]
            for each in found
            if each.build not in self.fixed
        ]
        self.names |= {each.build: each.name for each in found}
        looked_up = await self.lookups.look_up(requests)
        starts = [each for each in looked_up if isinstance(each, MoveStart) and each.source is not None]
        orders = await self.scheduler.resolved_for(list(map(asked_by, starts)))
        for start, order in zip(starts, orders, strict=True):
            if not order.verdict.invalid and order.attempts:
                self.starts[start.asked.build], self.orders[start.asked.build] = start, order

    def state(self, choosing: Choosing, classes: Sequence[str], *searches: CandidateSearch) -> CloudState:
        """Return the state of the cloud at one moment (without await): the free amounts and capacities of all
        hosts, by position in the index, and the movable instances on the hosts that were read.
        """
        arrays = HostArrays(self.scheduler.source.size, classes)
        for search in searches:
            arrays.put(search)
        accepted: dict[object, Bools] = {}
        instances: dict[int, list[MovableInstance]] = {}
        for root in self.hosts:
            if (at := self.scheduler.source.position(root)) is not None:
                instances[at] = []
        builds = list(self.orders)
        for build, order in zip(builds, self.scheduler.limit(list(self.orders.values())), strict=True):
            start, alternative = self.starts[build], order.preferred
            at = self.scheduler.source.position(start.source.root) if start.source is not None else None
            if at is None:
                continue
            alone, alternative = alternative.group is None, _of_any_source(alternative)
            kind = self.scheduler.policy.kind(alternative) if alone else build
            if kind not in accepted:
                accepted[kind] = arrays.accepting(choosing, alternative)
            instances[at].append(self._movable(start, arrays, accepted[kind]))
        position = self.scheduler.source.position
        forbidden = {
            build: {at for root in roots if (at := position(root)) is not None}
            for build, roots in self.forbidden.items()
        }
        return CloudState(arrays.free, arrays.whole, instances, forbidden)

    def _movable(self, start: MoveStart, arrays: "HostArrays", accepted: Bools) -> MovableInstance:
        held = amounts_of(start, self.scheduler.source.sharing)
        group = self.orders[start.asked.build].preferred.group
        apart = group.id if group is not None and group.policy == "anti-affinity" else None
        lives = not self.cold and not any(
            name in DEVICES or name.startswith(_PASSED_THROUGH) for name in held
        )
        return MovableInstance(start.asked.build, arrays.vector(held), accepted, lives, apart)

    def step(self, move: PlannedMove, host_at: Mapping[int, PlacedHost]) -> PlannedStep:
        start = self.starts[move.instance.build]
        source, destination = host_at[move.source], host_at[move.destination]
        return PlannedStep(
            build=start.asked.build,
            name=self.names.get(start.asked.build, ""),
            kind="live" if move.instance.lives else "migrate",
            cell=start.cell,
            source=source.uuid,
            source_host=source.host,
            destination=destination.uuid,
            destination_host=destination.host,
            holder=start.keep or "",
            wave=move.wave,
            amounts=amounts_of(start, self.scheduler.source.sharing),
        )


def of_any_source(order: Order) -> Order:
    """Return a copy of a move's order without its source host."""
    return order.changed(_of_any_source)


def _of_any_source(alternative: Alternative) -> Alternative:
    """Return a copy of a move's flavor without its source host, so that moves from several hosts are judged
    together. The source is then accepted: planners must exclude it.
    """
    left = tuple([root for root in alternative.question.not_roots if root not in alternative.current_roots])
    question = structs.replace(alternative.question, not_roots=left)
    return replace(alternative, question=question, current_roots=frozenset())


class HostArrays:
    """The free amounts and capacities of hosts, with a row for each row of the index."""

    def __init__(self, size: int, classes: Sequence[str]) -> None:
        self.classes = list(classes)
        self.free = np.zeros((size, len(classes)))
        self.whole = np.zeros((size, len(classes)))

    def vector(self, amounts: Mapping[str, int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([float(amounts.get(name, 0)) for name in self.classes])

    def put(self, search: CandidateSearch) -> None:
        for column, name in enumerate(self.classes):
            self.free[search.positions, column] = search.free(name)
            self.whole[search.positions, column] = search.capacity(name)

    def accepting(self, choosing: Choosing, alternative: Alternative) -> Bools:
        """Return a mask of the hosts that would accept a flavor if they were empty; also store the free
        amounts and capacities of the hosts in this object's arrays `free` and `whole`.
        """
        mask = np.zeros(len(self.free), np.bool_)
        if (found := accepting(choosing, alternative)) is not None:
            search, accepted = found
            self.put(search)
            mask[search.positions] = accepted
        return mask


def accepting(choosing: Choosing, alternative: Alternative) -> tuple[CandidateSearch, Bools] | None:
    """Search for the hosts that fit a flavor if they are empty. Return the result with a mask of the found
    hosts that pass all filters on arrays of hosts, or None if the flavor's query is invalid, or if a filter
    fails.
    """
    alternative = choosing.renewed(alternative)
    try:
        search = choosing.source.search(alternative.question, empty=True)
        found = FoundHosts(alternative, search, choosing.now, choosing.hosts, choosing.policy)
    except SenselessQuery:
        return None
    everywhere = np.ones(search.positions.size, np.bool_)
    return search, reduce(and_, [np.asarray(mask, np.bool_) for _, mask in found.masks], everywhere)


async def active_instances(cells: CellQueries, hosts: Sequence[PlacedHost]) -> list[Instance]:
    """Return the active instances on hosts; hosts of cells that do not reply are left out."""
    found: list[Instance] = []
    for some in portions(hosts, HOSTS_AT_ONCE):
        for instances in await together([_active_on(cells, host) for host in some]):
            found += instances
    return found


async def _active_on(cells: CellQueries, host: PlacedHost) -> Sequence[Instance]:
    question = FindInstances(cell=host.cell, host=host.uuid, statuses=("active",), limit=1000)
    try:
        return (await cells.instances(question)).instances
    except (Unroutable, NoAnswer, AnswerRefused):
        return ()


def amounts_of(start: MoveStart, sharing: Collection[str]) -> dict[str, int]:
    """Return what an instance to be moved holds on its host, by resource class, without shares of pools."""
    return amounts_on_host(start.source.choice.allocations if start.source is not None else {}, sharing)


def amounts_on_host(held: Allocations, sharing: Collection[str]) -> dict[str, int]:
    """Return the sum of allocations by resource class, without allocations from pools."""
    return totals({provider: amounts for provider, amounts in held.items() if provider not in sharing})


def only_on(order: Order, roots: Collection[Id]) -> Order:
    """Return a copy of an order that may use only the given hosts."""
    named = tuple(sorted(roots))
    return order.changed(lambda each: replace(each, question=structs.replace(each.question, roots=named)))


def on_closed(order: Order, roots: Collection[Id]) -> Order:
    """Return a copy of an order that may use only the given hosts. A plan has disabled them for other
    requests, so the order ignores that they are disabled.
    """

    def ignoring_disabled(alternative: Alternative) -> Alternative:
        forbidden = {*alternative.question.root_forbidden, FORCED_DOWN} - {DISABLED}
        question = structs.replace(alternative.question, root_forbidden=tuple(sorted(forbidden)))
        return replace(alternative, question=question)

    return only_on(order, roots).changed(ignoring_disabled)
