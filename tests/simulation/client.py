"""The client and the operator of a simulated world: random requests and edits; received ends of builds."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, TypeVar

from bus import topics
from bus.aggregates import AggregateEditRequested
from bus.cells import CellEditRequested, RegisterCell
from bus.delivery.runner import Bus
from bus.errors import Unavailable, Unroutable
from bus.host_health import DISABLED
from bus.ironic import NodeChanged
from bus.messages import (
    BuildCancelRequested,
    BuildDeleted,
    BuildDeleteRequested,
    BuildEnded,
    BuildRequested,
    BuildUnplaceable,
)
from bus.resources import EditRequested, SetTraits
from bus.vocabulary import Message
from features.moves.messages import MOVE_ENDED, MOVE_PROGRESS, MOVE_REFUSED
from features.preemption.messages import BUILD_PREEMPTED, BuildPreempted
from tests.simulation.headroom import coverable
from tests.simulation.invariants import Broken
from tests.simulation.moving_client import MovingClient
from tests.simulation.random_requests import (
    NODE_CLASSES,
    a_request,
    another_zone,
    for_node_class,
    with_priority,
)

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

T = TypeVar("T")
_PUBLISH_AGAIN = 0.5  # seconds after a publication that was not confirmed
_REPEAT = 20.0  # seconds without an end after which a request that may be lost is repeated


class SimulatedClient:
    def __init__(self, world: "SimulatedWorld") -> None:
        self.world = world
        self.chance = world.chance
        self.accepted: dict[str, BuildRequested] = {}
        self.ends: dict[str, tuple[str, str]] = {}
        self.cell_of: dict[str, str] = {}
        self.deleted: set[str] = set()  # builds whose deletion was requested
        self.preempted: set[str] = set()
        self.confirmed: set[str] = set()  # deletions that a cell has confirmed
        self.moving = MovingClient(world)

    def living(self) -> list[str]:
        active = sorted(build for build, (status, _) in self.ends.items() if status == "active")
        return [build for build in active if build not in self.deleted]

    def is_deleted(self) -> bool:
        """Return whether every deletion of an active build is confirmed."""
        return all(build in self.confirmed for build in self.deleted if self.ends[build][0] == "active")

    async def publish(self, bus: Bus, message: Message) -> None:
        """Publish a message, again and again until the broker confirms it."""
        while True:
            try:
                return await bus.publish(message)
            except (Unavailable, Unroutable):
                await asyncio.sleep(_PUBLISH_AGAIN)

    # Requests

    async def request_all(self, bus: Bus, count: int) -> None:
        await asyncio.sleep(1.0)
        for number in range(count):
            await asyncio.sleep(self.chance.expovariate(2.0))
            if self.world.metal:
                await self.publish(bus, self._node_event())
            await self._boot(bus, number)
            if self.chance.random() < 0.3 or self.world.metal:
                await self.publish(bus, self._node_event())
            await self._delete_one(bus)
            await self._cancel_one(bus)
            await self._edit_one(bus)
            await self._move_one(bus)
        for _ in range(12 if self.world.crowded else 3):
            await asyncio.sleep(self.chance.expovariate(0.5))
            await self._delete_one(bus)
            if self.world.metal:
                await self.publish(bus, self._node_event())
            await self.publish(bus, self.chance.choice(list(self.accepted.values())))  # a late repetition
            await self.moving.repeat_one(bus)
        if self.world.moves:
            await self._enable_all(bus)
        for _ in range(20 * count // 14 if self.world.moves else 0):
            await asyncio.sleep(self.chance.expovariate(0.7))
            await self._move_one(bus)
            if self.chance.random() < 0.15:
                await self._delete_one(bus)

    async def _boot(self, bus: Bus, number: int) -> None:
        request = a_request(self.chance, self.world.new_id, self.world.hosts())
        if self.world.preempts:
            low = number < self.world.requests * 2 // 3
            request = with_priority(request, low=low, full=self.world.full)
        if self.world.headroom:
            request = coverable(request, zoned=self.world.zoned)
        if self.world.reclasses and not self.world.full:
            request = for_node_class(request, always=self.world.metal)
        for instance in request.instances:
            self.accepted[instance] = request
        if self.chance.random() < 0.05:  # deleted before it is requested
            self.deleted.add(request.instances[0])
            await self.publish(bus, BuildCancelRequested(build=request.instances[0], anywhere=True))
        await self.publish(bus, request)
        self.world.note(f"request {number}: {len(request.instances)} × {request.flavor.name}")
        if self.chance.random() < 0.2:
            await self.publish(bus, request)  # an impatient client

    async def repeat_open(self, bus: Bus) -> None:
        """Repeat the requests and deletions whose end was not received, until this task is cancelled."""
        while True:
            await asyncio.sleep(_REPEAT)
            await self.repeat_once(bus)

    async def repeat_once(self, bus: Bus) -> None:
        requests = {build.request: build for id_, build in self.accepted.items() if id_ not in self.ends}
        for request in requests.values():
            self.world.note(f"repeat {request.request}")
            await self.publish(bus, request)
        for build in sorted(self.deleted - self.confirmed):
            await self.publish(bus, self.deletion(build))
        await self.moving.repeat_open(bus)

    def deletion(self, build: str) -> Message:
        if build in self.cell_of:
            return BuildDeleteRequested(build=build, cell=self.cell_of[build])
        return BuildCancelRequested(build=build, anywhere=True)

    async def _move_one(self, bus: Bus) -> None:
        if not self.world.moves:
            return
        await self.moving.request_one(bus)
        await self.moving.steer_one(bus)
        if self.chance.random() < 0.1:
            self.world.evacuate(bus)

    async def _delete_one(self, bus: Bus) -> None:
        active = self.living()
        if self.moving.moving and self.chance.random() < 0.5:
            active = [build for build in active if build in self.moving.moving]
        share = 0.1 if self.world.preempts else 0.7 if self.world.crowded else 0.3
        if active and self.chance.random() < share:
            build = self.chance.choice(active)
            self.deleted.add(build)
            await self.publish(bus, BuildDeleteRequested(build=build, cell=self.cell_of[build]))
            self.world.note(f"delete {build}")
        if self.chance.random() < 0.1:
            build = self.chance.choice(list(self.accepted))
            self.deleted.add(build)
            await self.publish(bus, BuildCancelRequested(build=build, anywhere=True))
            self.world.note(f"delete {build}, wherever it is")

    async def _cancel_one(self, bus: Bus) -> None:
        if self.chance.random() < 0.1:
            build = self.chance.choice(list(self.accepted))
            await self.publish(bus, BuildCancelRequested(build=build))
            self.world.note(f"cancel {build}")

    # The operator

    async def _edit_one(self, bus: Bus) -> None:
        """Disable or enable a host or a cell; add hosts to zones, and remove them."""
        if self.world.preempts:  # the cloud is to be full
            return
        if self.world.headroom and self.chance.random() < 0.7:  # else most hosts get no slots
            return
        if self.chance.random() < 0.3:
            host = self.chance.choice(self.chance.choice(self.world.fleet()).hosts)
            disabled = (DISABLED,) if self.chance.random() < 0.4 else ()
            edit = SetTraits(provider=host.root, traits=disabled)
            async with self.moving.editing:
                if host.root not in self.moving.fenced:
                    with suppress(Unavailable):
                        await bus.asker(topics.EDIT)(EditRequested(edit=edit))
                        self.world.note(f"edit {host.root} {disabled}")
        if self.chance.random() < 0.3:
            with suppress(Unavailable):
                moved = another_zone(self.chance, self.world.hosts())
                await bus.asker(topics.EDIT_AGGREGATE)(AggregateEditRequested(edit=moved))
                self.world.note(f"edit {moved.aggregate} +{moved.add} -{moved.remove}")
        if self.chance.random() < 0.15:
            with suppress(Unavailable):
                name = self.chance.choice(self.world.cells)
                cell = RegisterCell(cell=name, enabled=self.chance.random() < 0.7)
                await bus.asker(topics.EDIT_CELL)(CellEditRequested(edit=cell))
                self.world.note(f"edit {cell.cell} {cell.enabled}")

    async def _enable_all(self, bus: Bus) -> None:
        for name in self.world.cells:
            edit = CellEditRequested(edit=RegisterCell(cell=name, enabled=True))
            with suppress(Unavailable):
                await bus.asker(topics.EDIT_CELL)(edit)
        for host in self.world.hosts():
            async with self.moving.editing:
                if host.root not in self.moving.fenced:
                    with suppress(Unavailable):
                        edit_host = EditRequested(edit=SetTraits(provider=host.root, traits=()))
                        await bus.asker(topics.EDIT)(edit_host)
        self.world.note("all hosts and cells are enabled")

    def _node_event(self) -> NodeChanged:
        metal = [(agent, host) for agent in self.world.fleet() for host in agent.hosts if host.metal]
        agent, host = self.chance.choice(metal)
        state, maintenance = self.chance.choice(
            (("available", False), ("available", True), ("cleaning", False), ("clean failed", True))
        )
        now, class_ = self.world.clock.now(), NODE_CLASSES[0]
        if self.world.reclasses:  # without the chance of the world
            own = Random(f"class {host.root} {now}")
            class_ = own.choice(NODE_CLASSES)
            if self.world.metal and own.random() < 0.7:
                state, maintenance = "available", False
        return NodeChanged(
            event="provision_set",
            node=host.root,
            at=now,
            cell=agent.cell,
            agent=agent.agent,
            resource_class=class_,
            provision_state=state,
            maintenance=maintenance,
        )

    # Ends

    async def listen(self, bus: Bus) -> list[Coroutine[None, None, None]]:
        """Subscribe to all messages for clients; return the coroutines that receive them."""
        return [
            _receive((await bus.listen(topics.BUILD_ENDED.at())).get, self._on_ended),
            _receive((await bus.listen(topics.BUILD_UNPLACEABLE.at())).get, self._on_unplaceable),
            _receive((await bus.listen(topics.BUILD_DELETED.at())).get, self._on_deleted),
            _receive((await bus.listen(BUILD_PREEMPTED.at())).get, self._on_preempted),
            _receive((await bus.listen(MOVE_ENDED.at())).get, self.moving.on_ended),
            _receive((await bus.listen(MOVE_REFUSED.at())).get, self.moving.on_refused),
            _receive((await bus.listen(MOVE_PROGRESS.at())).get, self.moving.on_progress),
        ]

    def _on_ended(self, build_ended: BuildEnded) -> None:
        self.cell_of[build_ended.build] = build_ended.cell
        forced = self.accepted[build_ended.build].forced_host
        if build_ended.status == "active" and forced and build_ended.host != forced:
            self.world.stop(
                Broken(f"{build_ended.build} was forced to {forced}, and is on {build_ended.host}")
            )
        self._end(build_ended.build, build_ended.status, build_ended.host)

    def _on_unplaceable(self, build_unplaceable: BuildUnplaceable) -> None:
        for instance in build_unplaceable.instances:
            self._end(instance, "unplaceable", "")

    def _on_deleted(self, build_deleted: BuildDeleted) -> None:
        self.confirmed.add(build_deleted.build)
        if build_deleted.reason:
            self.deleted.add(build_deleted.build)

    def _on_preempted(self, build_preempted: BuildPreempted) -> None:
        self.preempted.add(build_preempted.build)

    def _end(self, build: str, status: str, host: str) -> None:
        self.world.note(f"end {build} {status} {host}")
        known = self.ends.setdefault(build, (status, host))
        if known != (status, host):
            if not self.world.commits_lost:
                self.world.stop(Broken(f"{build} ended as {known}, and then as {(status, host)}"))
            self.ends[build] = status, host  # the last end counts after a fail-over that lost commits
        self.world.note_traceless()


async def _receive(get: Callable[[], Awaitable[T]], handle: Callable[[T], None]) -> None:
    while True:
        handle(await get())
