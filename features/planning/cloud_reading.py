"""Reads the instances of hosts that could move, and the free capacity of all hosts, for planners of moves."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from bus.candidates import Bools, CandidateSearch, PlacedHost
from bus.vocabulary import Id
from features.moves.core.start import MoveStart, asked_by
from features.moves.lookups import MoveLookups
from features.moves.messages import MoveRequested
from features.planning.core.moved_cloud import CloudState, MovableInstance, PlannedMove
from features.planning.core.usable_after import UsableAfterMoves
from features.planning.joint_rules import JointPlacing
from features.planning.messages import PlannedStep
from scheduler_worker.core.extension import Held, Shape, Weigher, shape_of
from scheduler_worker.extension import (
    AllHosts,
    Alternative,
    CellQueries,
    ChoicePolicy,
    Choosing,
    HostArrays,
    Order,
    Searching,
    active_instances,
    amounts_on_host,
)

DEVICES = frozenset({"PCI_DEVICE", "SRIOV_NET_VF", "VGPU", "VGPU_DISPLAY_HEAD", "PGPU", "FPGA"})
_PASSED_THROUGH = "CUSTOM_PCI"  # prefix of the classes of devices that a guest uses directly


@dataclass(eq=False)
class CloudReading:
    """The instances that were on some hosts when read; for each instance, the data for a move, and the order
    that finds its destination.
    """

    scheduler: Searching
    lookups: MoveLookups
    cells: CellQueries
    cold: bool  # instances are stopped to be moved (cold migration)
    fixed: Collection[Id]  # instances that must not move
    joint: JointPlacing
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

    def state(
        self,
        choosing: Choosing,
        classes: Sequence[str],
        searches: Sequence[CandidateSearch],
        weigher: Weigher | None = None,
        shapes: Sequence[Shape] = (),
    ) -> CloudState:
        """Return the state of the cloud at one moment (without await): the free amounts and capacities of all
        hosts, by position in the index, and the movable instances on the hosts that were read.

        With a weigher, the state also has what is usable of hosts; `shapes` are those of the builds for which
        a plan makes room.
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
            is_joint, alternative = self.joint.concerns(alternative), _of_any_source(alternative)
            kind = build if is_joint else self.scheduler.policy.kind(alternative)
            if kind not in accepted:
                accepted[kind] = arrays.accepting(choosing, alternative)
            instance = self._movable(start, arrays, accepted[kind])
            if weigher is not None:
                held = self._held(start, searches[0], at)
                instance = replace(instance, held=held, shape=shape_of(alternative.question))
            instances[at].append(instance)
        position = self.scheduler.source.position
        forbidden = {
            build: {at for root in roots if (at := position(root)) is not None}
            for build, roots in self.forbidden.items()
        }
        usable = None
        if weigher is not None and weigher.usable is not None:
            moved = {each.shape for some in instances.values() for each in some}
            view = AllHosts(searches[0], choosing.now)
            usable = UsableAfterMoves(weigher.usable(view, moved.union(shapes)))
        return CloudState(arrays, instances, forbidden, usable)

    def _held(self, start: MoveStart, search: CandidateSearch, at: int) -> Held:
        """Return what an instance holds on the host at this row of the index."""
        held = start.source.choice.allocations if start.source is not None else {}
        row_of = {start.source.root: at} if start.source is not None else {}
        if not held.keys() <= row_of.keys():
            row_of = {provider.uuid: provider.position for provider in search.tree(at)}
        return tuple(
            (row_of[uuid], name, amount)
            for uuid, amounts in sorted(held.items())
            if uuid in row_of  # others are pools
            for name, amount in sorted(amounts.items())
        )

    def _movable(self, start: MoveStart, arrays: "HostArrays", accepted: Bools) -> MovableInstance:
        held = amounts_of(start, self.scheduler.source.sharing)
        preferred = self.orders[start.asked.build].preferred
        apart = self.joint.of(preferred).apart(preferred)
        lives = not self.cold and not any(
            name in DEVICES or name.startswith(_PASSED_THROUGH) for name in held
        )
        return MovableInstance(start.asked.build, arrays.vector(held), accepted, lives, apart)

    def step(self, move: PlannedMove, host_at: Mapping[int, PlacedHost]) -> PlannedStep:
        """Return a planned move with the names that clients need."""
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
            gain=round(move.gain, 6),
            amounts=amounts_of(start, self.scheduler.source.sharing),
        )


def usable_weigher(policy: ChoicePolicy, *, enabled: bool = True) -> Weigher | None:
    """Return the weigher that knows what the usual requests could use of hosts; None if there is none, or if
    only an `enabled` one is asked for and its multiplier is 0.
    """
    known = [each for each in policy.weighers if each.usable is not None and (each.multiplier or not enabled)]
    return known[0] if known else None


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


def amounts_of(start: MoveStart, sharing: Collection[str]) -> dict[str, int]:
    """Return what an instance to be moved holds on its host, by resource class, without shares of pools."""
    return amounts_on_host(start.source.choice.allocations if start.source is not None else {}, sharing)
