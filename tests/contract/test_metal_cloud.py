"""Builds on bare metal from request to end: every worker, a simulated Ironic, and what may go wrong."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.local import Chaos, LocalBroker, LocalTransport
from bus.messages import (
    BuildDeleteRequested,
    BuildEnded,
    BuildRequested,
    BuildUnplaceable,
    FindAllocations,
    FindProviders,
)
from bus.resources import Provider
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Flavor
from bus.worker import Worker
from compute_sim.core import Durations
from compute_sim.ironic import BusVoice, SimNode, SimPlan, Simulation, enrolled
from ironic_sync import ironic_sync
from ironic_sync.agent import metal_agent
from ironic_sync.api import Access, IronicApi
from tests.support.cloud_workers import of_one_cell
from tests.support.conductor_builders import CELL
from tests.support.metal_agent_world import AGENT, WayToSimulatedIronic
from tests.support.virtual_time import in_virtual_time

LONG = 600.0  # virtual seconds in which whatever would still happen has happened
METAL = Flavor(
    name="metal",
    extra_specs={
        "resources:CUSTOM_BAREMETAL": "1",
        "resources:VCPU": "0",
        "resources:MEMORY_MB": "0",
        "resources:DISK_GB": "0",
    },
)


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
        return {one.id: next(iter(one.allocations)) for one in consumers}

    async def is_open(self, root: str) -> bool:
        """Could a build be placed there now?"""
        one = await self.provider(root)
        only = one.inventories["CUSTOM_BAREMETAL"]
        return only.reserved == 0 and one.used["CUSTOM_BAREMETAL"] == 0

    async def hear(self) -> None:
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

        for listening in (each_end(), each_loss()):
            self.lives[listening.__name__] = self.group.create_task(listening)


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
        voice = BusVoice(bus.publish, lambda node: (CELL, AGENT, ""), made.clock)
        made.ironic = Simulation(made.enrolled, plan=made.plan, voice=voice, clock=made.clock)
        made.line = WayToSimulatedIronic(made.ironic)
        await made.hear()
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


@in_virtual_time
async def test_a_node_stays_closed_from_its_claim_until_it_is_clean_again() -> None:
    async with cloud(nodes=1, plan=SimPlan(step_time=Durations("constant", (60.0,)))) as c:
        (root,) = c.nodes
        node = c.nodes[root]
        build = await c.build()
        seen: dict[str, tuple[int, int]] = {}

        async def look() -> None:
            one = await c.provider(root)
            key = f"{node.provision_state}{'' if node.instance_uuid is None else ', ours'}"
            seen[key] = (
                one.inventories["CUSTOM_BAREMETAL"].reserved,
                one.used["CUSTOM_BAREMETAL"],
            )
            await asyncio.sleep(1.0)

        while build not in c.ended:
            await look()
        await look()
        assert (c.ended[build].status, c.ended[build].root) == ("active", root)
        assert (await c.end_of(await c.build())) == "unplaceable"
        await c.delete(build)
        while node.provision_state != "available":
            await look()
        await asyncio.sleep(1.0)
        await look()
        # over-committed on paper while Ironic says that the node is in use, and it is claimed as well
        assert seen == {
            "deploying, ours": (1, 1),
            "active, ours": (1, 1),
            "deleting, ours": (1, 1),
            "cleaning": (1, 0),
            "available": (0, 0),
        }
        assert await c.end_of(await c.build()) == "active"


@pytest.mark.parametrize("how", ["by hand", "in maintenance", "cleaned again", "gone"])
@in_virtual_time
async def test_a_build_that_finds_its_node_taken_is_active_on_another(how: str) -> None:
    """Before placement knows: Ironic tells of it only after the claim."""
    async with cloud(nodes=2) as c:
        await c.kill("ironic_sync")
        await c.kill("agent")
        build = await c.build()
        await asyncio.sleep(1.0)
        ((_, root),) = (await c.held()).items()
        change = {
            "by hand": {"instance_uuid": c.clock.uuid()},
            "in maintenance": {"maintenance": True},
            "cleaned again": {"provision_state": "clean wait"},
        }
        if how == "gone":
            c.ironic.conductor.remove(c.nodes[root])
        else:
            c.ironic.conductor.change(c.nodes[root], **change[how])
        c.start("agent")
        c.start("ironic_sync")
        assert await c.end_of(build) == "active"
        assert [tried.outcome for tried in c.ended[build].attempts] == ["failed", "built"]
        assert c.ended[build].root != root
        assert await c.held() == {build: c.ended[build].root}


@in_virtual_time
async def test_a_node_that_is_no_longer_free_is_not_claimed() -> None:
    async with cloud(nodes=3) as c:
        taken, kept = list(c.nodes)[:2]
        await c.ironic.conductor.free(taken)
        c.ironic.conductor.change(c.nodes[taken], maintenance=True)
        c.ironic.conductor.tell("maintenance_set", "end", c.nodes[taken], "req")
        c.ironic.conductor.change(c.nodes[kept], instance_uuid=c.clock.uuid())
        c.ironic.conductor.tell("update", "end", c.nodes[kept], "req")
        await asyncio.sleep(1.0)
        builds = [await c.build() for _ in range(2)]
        assert sorted([await c.end_of(build) for build in builds]) == ["active", "unplaceable"]
        (active,) = [c.ended[build] for build in builds if build in c.ended]
        assert active.root not in (taken, kept)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_goes_wrong_every_node_is_in_the_end_where_its_build_is(seed: int) -> None:
    """Works that fail; workers killed; messages doubled and out of order; an Ironic that is away."""

    @in_virtual_time
    async def told() -> None:
        chance = random.Random(seed)
        plan = SimPlan(
            seed=seed,
            step_time=Durations.parse("exponential:3"),
            fail=0.15,
            call_back=bool(seed % 2),
            patience=1.0,
        )
        timeout = 10.0 if seed % 3 == 0 else 1800.0  # the conductor gives up while Ironic still works
        async with cloud(nodes=5, plan=plan, seed=seed, chaos=True, build_timeout=timeout) as c:
            builds: list[str] = []
            deleted: set[str] = set()
            for _ in range(30):
                await asyncio.sleep(chance.expovariate(0.2))
                what = chance.random()
                active = [b for b in builds if b in c.ended and b not in deleted]
                if what < 0.4:
                    builds.append(await c.build())
                elif what < 0.6 and active:
                    deleted.add(chance.choice(active))
                    await c.delete(chance.choice(sorted(deleted)))
                elif what < 0.85:
                    name = chance.choice(sorted(c.factories()))
                    await c.kill(name)
                    await asyncio.sleep(chance.choice((0.0, 0.1, 5.0)))
                    c.start(name)
                else:
                    c.line.cut = True
                    await asyncio.sleep(chance.expovariate(0.1))
                    c.line.cut = False
            for build in builds:
                await c.end_of(build)
            for build in deleted:
                await c.delete(build)
            await mend(c)
            await at_rest(c, {b for b in c.ended if c.ended[b].status == "active"} - deleted)

    told()


async def mend(c: MetalCloud) -> None:
    """An operator puts nodes whose cleaning failed back into the pool."""
    c.ironic.conductor.plan = SimPlan()
    await asyncio.sleep(60.0)
    for node in c.nodes.values():
        if node.provision_state == "clean failed":
            c.ironic.conductor.change(node, maintenance=False, provision_state="available")
            c.ironic.conductor.tell("update", "end", node, "req")
    await asyncio.sleep(60.0)


async def at_rest(c: MetalCloud, active: set[str]) -> None:
    in_use = {node.instance_uuid: uuid for uuid, node in c.nodes.items() if node.instance_uuid}
    assert in_use == {build: c.ended[build].root for build in active}, c.picture()
    assert await c.held() == in_use
    states = {node.provision_state for node in c.nodes.values() if node.instance_uuid is None}
    assert states <= {"available"}, c.picture()
    for uuid, node in c.nodes.items():
        assert await c.is_open(uuid) == (node.instance_uuid is None), c.picture()
