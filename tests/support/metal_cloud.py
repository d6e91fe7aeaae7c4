"""A cell of bare metal in virtual time: every worker, a simulated Ironic, and what may go wrong."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.local import Chaos, LocalBroker, LocalTransport
from bus.messages import BuildDeleteRequested, BuildEnded, BuildRequested, BuildUnplaceable
from bus.resources import FindAllocations, FindProviders, Provider
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.worker import Worker
from compute_sim.ironic import BusNotifier, SimNode, SimPlan, Simulation, enrolled
from ironic_sync import ironic_sync
from ironic_sync.agent import metal_agent
from ironic_sync.api import Access, IronicApi
from tests.support.cloud_workers import of_one_cell
from tests.support.conductor_builders import CELL
from tests.support.metal_agent_world import AGENT, WayToSimulatedIronic
from tests.support.scheduler_builders import METAL

LONG = 600.0  # virtual seconds in which whatever would still happen has happened


class MetalCloud:
    """One cell of bare metal. Workers have names, and may be killed by them."""

    def __init__(self, nodes: int, plan: SimPlan, seed: int, chaos: bool, build_timeout: float) -> None:
        self.chance = random.Random(seed)
        loop = asyncio.get_running_loop()
        self.clock = Clock(lambda: 1_700_000_000.0 + loop.time(), self.chance, loop.time)
        self.broker = LocalBroker(
            chaos=Chaos(random.Random(seed), reorder=0.2, duplicate=0.1) if chaos else None, clock=self.clock
        )
        self.placement_db = Database("sqlite+aiosqlite://", inline=True)
        self.cell_db = Database("sqlite+aiosqlite://", inline=True)
        self.enrolled = enrolled(nodes, now=self.clock.now())
        self.plan = plan
        self.build_timeout = build_timeout
        self.lives: dict[str, asyncio.Task[None]] = {}
        self.ended: dict[str, BuildEnded] = {}
        self.unplaceable: dict[str, BuildUnplaceable] = {}
        self.bus: Bus
        self.ironic: Simulation
        self.line: WayToSimulatedIronic
        self.group: asyncio.TaskGroup

    @property
    def nodes(self) -> dict[str, SimNode]:
        return self.ironic.conductor.nodes

    # Its workers

    def factories(self) -> dict[str, Callable[[Bus], Worker]]:
        return {
            **of_one_cell(
                self.placement_db, CELL, self.cell_db, self.clock, build_timeout=self.build_timeout
            ),
            "ironic_sync": lambda bus: ironic_sync(),
            "agent": lambda bus: metal_agent(
                AGENT,
                CELL,
                IronicApi(Access(url="http://ironic"), self.clock, transport=self.line),
                clock=self.clock,
            ),
        }

    def start(self, name: str) -> None:
        async def live() -> None:
            async with Bus(LocalTransport(self.broker), self.clock) as bus:
                await bus.serve(self.factories()[name](bus), asyncio.Event())

        self.lives[name] = self.group.create_task(live())

    async def kill(self, name: str) -> None:
        self.lives[name].cancel()
        await asyncio.wait([self.lives[name]])

    # What a client does and sees

    async def build(self) -> str:
        build = self.clock.uuid()
        await self.bus.publish(BuildRequested(request=self.clock.uuid(), instances=(build,), flavor=METAL))
        return build

    async def delete(self, build: str) -> None:
        await self.bus.publish(BuildDeleteRequested(build=build, cell=CELL))

    async def end_of(self, build: str) -> str:
        """active, error or unplaceable."""
        await self.until(lambda: build in self.ended or build in self.unplaceable)
        return self.ended[build].status if build in self.ended else "unplaceable"

    async def until(self, true: Callable[[], bool], why: str = "") -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LONG
        while not true():
            assert loop.time() < deadline, why or self.picture()
            await asyncio.sleep(0.05)

    def picture(self) -> str:
        return "\n".join(
            f"{node.uuid} {node.provision_state} {node.instance_uuid} {node.extra}"
            for node in self.nodes.values()
        )

    async def provider(self, root: str) -> Provider:
        (found,) = (await self.bus.asker(topics.PROVIDERS)(FindProviders(ids=(root,)))).providers
        return found

    async def held(self) -> dict[str, str]:
        """Consumer → node."""
        ask = self.bus.asker(topics.ALLOCATIONS)
        consumers = (await ask(FindAllocations(providers=tuple(self.nodes)))).consumers
        return {consumer.id: next(iter(consumer.allocations)) for consumer in consumers}

    async def is_open(self, root: str) -> bool:
        """Could a build be placed there now?"""
        one = await self.provider(root)
        only = one.inventories["CUSTOM_BAREMETAL"]
        return only.reserved == 0 and one.used["CUSTOM_BAREMETAL"] == 0

    async def handle(self) -> None:
        ended = await self.bus.listen(topics.BUILD_ENDED.at())
        lost = await self.bus.listen(topics.BUILD_UNPLACEABLE.at())

        async def each_end() -> None:
            while True:
                said = await ended.get()
                before = self.ended.setdefault(said.build, said)
                assert (before.status, before.root) == (said.status, said.root), "it ended twice"

        async def each_loss() -> None:
            while True:
                said = await lost.get()
                self.unplaceable.update(dict.fromkeys(said.instances, said))

        for listen in (each_end, each_loss):
            self.lives[listen.__name__] = self.group.create_task(listen())


@asynccontextmanager
async def cloud(
    nodes: int = 3,
    plan: SimPlan | None = None,
    *,
    seed: int = 0,
    chaos: bool = False,
    build_timeout: float = 1800.0,
) -> AsyncIterator[MetalCloud]:
    made = MetalCloud(nodes, plan or SimPlan(), seed, chaos, build_timeout)
    await migrate(made.placement_db, "placement_worker")
    await migrate(made.cell_db, "cell_conductor")
    async with Bus(LocalTransport(made.broker), made.clock) as bus, asyncio.TaskGroup() as group:
        made.bus, made.group = bus, group
        voice = BusNotifier(bus.publish, lambda node: (CELL, AGENT, ""), made.clock)
        made.ironic = Simulation(made.enrolled, plan=made.plan, voice=voice, clock=made.clock)
        made.line = WayToSimulatedIronic(made.ironic)
        await made.handle()
        for name in made.factories():
            made.start(name)
        made.lives["ironic"] = group.create_task(made.ironic.run())
        try:
            await asyncio.sleep(5.0)
            yield made
        finally:
            for task in made.lives.values():
                task.cancel()
    await made.placement_db.close()
    await made.cell_db.close()
