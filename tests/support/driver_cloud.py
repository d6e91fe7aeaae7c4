"""One cell with device drivers, on both buses: builds, agents' orders and allocations."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from berth.features import packages
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.messages import BuildDeleteRequested, BuildEnded, BuildRequested, BuildUnplaceable
from bus.queries import FindBuilds
from bus.reports import Inventory
from bus.requests import Flavor
from bus.resources import (
    Edit,
    Edited,
    EditRequested,
    FindAllocations,
    FindProviders,
    MakeProvider,
    Provider,
    SetAggregates,
    SetInventories,
    SetTraits,
)
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Allocations
from bus.worker import Worker
from compute_sim.agent_disk import AgentDisk, GuestFile
from compute_sim.core.drivers import build_tree
from compute_sim.core.faults import FaultPlan, SimOptions
from compute_sim.guests import GuestRecord
from compute_sim.machines import SimAgent, SimHost
from compute_sim.worker import compute_sim
from tests.support.buses import Connect, queues_of
from tests.support.cloud_workers import Make, of_one_cell
from tests.support.conductor_builders import CELL
from tests.support.feature_parts import agent_parts
from tests.support.ids import uid
from tests.support.waiting import in_time, receive_all, until

AGENT = "agent1"
_NUMBERS = count(1)


class DriverCloud:
    def __init__(self, bus: Bus, agent: "RestartedAgent") -> None:
        self.bus = bus
        self.agent = agent
        self.ends: dict[str, BuildEnded | BuildUnplaceable] = {}

    @property
    def hosts(self) -> Sequence[SimHost]:
        return self.agent.hosts

    @property
    def disk(self) -> AgentDisk:
        return self.agent.disk

    async def selected(self, *builds: str) -> list[Allocations]:
        found = await self.bus.asker(topics.FIND_BUILDS)(FindBuilds(cell=CELL, builds=builds))
        chosen = {
            build.build: selection.choice.allocations
            for build in found.builds
            for selection in (build.placed.chosen, *build.placed.alternates)
            if selection.host == build.host
        }
        return [chosen[build] for build in builds]

    async def known(self) -> None:
        """Wait until placement has all providers of all hosts."""
        trees = [build_tree(host.root, host.host, host.all_drivers) for host in self.hosts]
        wanted = {provider.name for tree in trees for provider in tree.providers}

        async def all_there() -> bool:
            return wanted <= (await self.providers()).keys()

        await until(all_there, "placement knows the hosts")

    async def providers(self) -> dict[str, Provider]:
        """Return the agent's providers in placement, by name."""
        found = await self.bus.asker(topics.PROVIDERS)(
            FindProviders(agents=(AGENT,), parts=("inventories", "traits", "aggregates", "owner"))
        )
        return {provider.name: provider for provider in found.providers}

    async def name_of(self) -> dict[str, str]:
        return {provider.id: name for name, provider in (await self.providers()).items()}

    async def booted(self, *flavors: Flavor) -> list[BuildEnded | BuildUnplaceable]:
        builds = [uid(next(_NUMBERS), "b") for _ in flavors]
        asked = [
            BuildRequested(request=f"a{build[1:]}", instances=(build,), flavor=flavor)
            for build, flavor in zip(builds, flavors, strict=True)
        ]
        await self.bus.publish(*asked)
        await until(lambda: all(build in self.ends for build in builds), "all have ended", 30.0)
        return [self.ends[build] for build in builds]

    async def delete(self, build: str) -> None:
        deleted = await self.bus.listen(topics.BUILD_DELETED.at(reply_to=f"d-{build}"))
        await self.bus.publish(BuildDeleteRequested(build=build, cell=CELL, reply_to=f"d-{build}"))
        await in_time(deleted.get())

    async def held(self, build: str) -> Allocations:
        return (await self.all_held(build))[0]

    async def all_held(self, *builds: str) -> list[Allocations]:
        found = await self.bus.asker(topics.ALLOCATIONS)(FindAllocations(consumers=builds))
        held = {consumer.id: consumer.allocations for consumer in found.consumers}
        return [held.get(build, {}) for build in builds]

    def guest(self, build: str) -> GuestRecord:
        (guest,) = self.disk.hosted.there[build].values()
        return guest

    async def pool(self, name: str, inventories: dict[str, Inventory], aggregate: str) -> str:
        id_ = uid(next(_NUMBERS), "e")
        edits: list[Edit] = [
            MakeProvider(provider=id_, name=name),
            SetInventories(provider=id_, inventories=inventories),
            SetTraits(provider=id_, traits=("MISC_SHARES_VIA_AGGREGATE",)),
            SetAggregates(provider=id_, aggregates=(aggregate,)),
        ]
        for edit in edits:
            answer = await self.bus.asker(topics.EDIT)(EditRequested(edit=edit))
            assert isinstance(answer.result, Edited), answer
        return id_

    async def handle(self) -> None:
        ended = await self.bus.listen(topics.BUILD_ENDED.at(reply_to=""))
        nowhere = await self.bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to=""))

        def unplaced(message: BuildUnplaceable) -> None:
            self.ends.update(dict.fromkeys(message.instances, message))

        await asyncio.gather(
            receive_all(ended, lambda end: self.ends.update({end.build: end})), receive_all(nowhere, unplaced)
        )


@dataclass(eq=False)
class RestartedAgent:
    """An agent that can be stopped, killed, and started again, also with other hosts."""

    hosts: Sequence[SimHost]
    faults: FaultPlan | None
    clock: Clock
    file: Path | None
    serve: Callable[[Make, asyncio.Event, asyncio.Event], "asyncio.Task[None]"]
    disk: AgentDisk = field(default_factory=AgentDisk)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _life: asyncio.Task[None] | None = None

    async def start(self, hosts: Sequence[SimHost] | None = None) -> None:
        self.hosts = hosts or self.hosts
        if self.file is not None:
            self.disk = AgentDisk(file=GuestFile(self.file))
        started, self._stopping = asyncio.Event(), asyncio.Event()
        self._life = self.serve(self._worker, started, self._stopping)
        await started.wait()

    async def stop(self) -> None:
        self._stopping.set()
        await self._ended()

    async def kill(self) -> None:
        assert self._life is not None
        self._life.cancel()
        await self._ended()

    async def _ended(self) -> None:
        if self._life is not None:
            await asyncio.wait([self._life])
            self._life = None
            self.disk.close()

    def _worker(self, bus: Bus) -> Worker:
        return compute_sim(
            SimAgent(AGENT, CELL, tuple(self.hosts)),
            SimOptions(faults=self.faults or FaultPlan(), period=0.5),
            clock=self.clock,
            disk=self.disk,
            providers=bus.asker(topics.CELL_PROVIDERS),
            allocations=bus.asker(topics.CELL_ALLOCATIONS),
            parts=agent_parts(),
        )


@asynccontextmanager
async def a_driver_cloud(
    connect: Connect,
    url: str,
    hosts: Sequence[SimHost],
    *,
    faults: FaultPlan | None = None,
    file: Path | None = None,
) -> AsyncIterator[DriverCloud]:
    """Run a cell with an agent of these hosts. With `file`, a restarted agent has only the state in it."""
    clock, stopping = Clock(), asyncio.Event()
    placement, builds = Database(url, namespace="placement"), Database(url, namespace=f"cell_{CELL}")
    made = of_one_cell(placement, CELL, builds, clock)

    async def serve(worker_of: Make, started: asyncio.Event, stopping: asyncio.Event) -> None:
        async with Bus(connect(), clock) as bus:
            worker = worker_of(bus)
            await bus.transport.declare(*queues_of(worker, bus.replica))
            started.set()
            await bus.serve(worker, stopping, drain=2.0)

    try:
        await migrate(placement, *packages("placement"))
        await migrate(builds, *packages("conductor"))
        async with Bus(connect(), clock) as client, asyncio.TaskGroup() as group:
            agent = RestartedAgent(
                hosts, faults, clock, file, lambda *given: group.create_task(serve(*given))
            )
            cloud = DriverCloud(client, agent)
            listening = group.create_task(cloud.handle())
            for callable in made.values():
                started = asyncio.Event()
                group.create_task(serve(callable, started, stopping))
                await started.wait()
            await agent.start()
            try:
                await cloud.known()
                yield cloud
            finally:
                stopping.set()
                await agent.stop()
                listening.cancel()
    finally:
        await placement.close()
        await builds.close()
