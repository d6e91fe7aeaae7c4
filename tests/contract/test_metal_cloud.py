"""Builds on bare metal from request to end, with all workers, a simulated Ironic, and faults."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from berth.features import packages
from bus import topics
from bus.delivery.runner import Bus
from bus.messages import BuildRequested, BuildUnplaceable
from bus.resources import FindAllocations, FindProviders, Provider
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.worker import Worker
from compute_sim.core.faults import Durations
from compute_sim.ironic.conductor import SimPlan
from compute_sim.ironic.simulation import Simulation
from ironic_sync.agent.right import NodeRight
from ironic_sync.agent.worker import metal_agent
from ironic_sync.worker import ironic_sync
from tests.support.bus_notifier import BusNotifier
from tests.support.cloud_workers import of_one_cell
from tests.support.conductor_builders import CELL
from tests.support.metal_agent_world import AGENT, MetalCell, WayToSimulatedIronic
from tests.support.scheduler_builders import METAL
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import receive_all


class MetalCloud(MetalCell):
    """All workers of one cell of bare-metal nodes, with placement and a scheduler."""

    def __init__(self, nodes: int, plan: SimPlan, seed: int, chaos: bool, build_timeout: float) -> None:
        super().__init__(nodes, plan, seed, chaos)
        self.placement_db = Database("sqlite+aiosqlite://", inline=True)
        self.build_timeout = build_timeout
        self.unplaceable: dict[str, BuildUnplaceable] = {}
        sink = BusNotifier(
            lambda *given: self.bus.publish(*given), lambda node: (CELL, AGENT, ""), self.clock
        )
        self.ironic = Simulation(self.enrolled, plan=plan, sink=sink, clock=self.clock)
        sink.introduce(self.enrolled)
        self.line = WayToSimulatedIronic(self.ironic)

    def factories(self) -> dict[str, Callable[[Bus], Worker]]:
        return {
            **of_one_cell(
                self.placement_db, CELL, self.cell_db, self.clock, build_timeout=self.build_timeout
            ),
            "ironic_sync": lambda bus: ironic_sync(),
            "agent": lambda bus: metal_agent(
                AGENT, CELL, self.line.api(self.clock), NodeRight(), clock=self.clock
            ),
        }

    def start(self, name: str) -> None:
        self.serve(name, self.factories()[name])

    async def build(self) -> str:
        build = self.clock.uuid()
        await self.bus.publish(BuildRequested(request=self.clock.uuid(), instances=(build,), flavor=METAL))
        return build

    async def end_of(self, build: str) -> str:
        """Wait for the end of a build; return active, error or unplaceable."""
        await self.until(lambda: build in self.ended or build in self.unplaceable)
        return self.ended[build].status if build in self.ended else "unplaceable"

    async def provider(self, root: str) -> Provider:
        (found,) = (await self.bus.asker(topics.PROVIDERS)(FindProviders(ids=(root,)))).providers
        return found

    async def held(self) -> dict[str, str]:
        """Return the node of each consumer with allocations."""
        ask = self.bus.asker(topics.ALLOCATIONS)
        consumers = (await ask(FindAllocations(providers=tuple(self.nodes)))).consumers
        return {consumer.id: next(iter(consumer.allocations)) for consumer in consumers}

    async def is_open(self, root: str) -> bool:
        """Return whether a build can be placed on the node now."""
        one = await self.provider(root)
        only = one.inventories["CUSTOM_BAREMETAL"]
        return only.reserved == 0 and one.used["CUSTOM_BAREMETAL"] == 0

    def on_loss(self, loss: BuildUnplaceable) -> None:
        self.unplaceable.update(dict.fromkeys(loss.instances, loss))


@asynccontextmanager
async def cloud(
    nodes: int = 3, plan: SimPlan | None = None, *, seed: int = 0, chaos: bool = False,
    build_timeout: float = 1800.0,
) -> AsyncIterator[MetalCloud]:  # fmt: skip
    made = MetalCloud(nodes, plan or SimPlan(), seed, chaos, build_timeout)
    await migrate(made.placement_db, *packages("placement"))
    await migrate(made.cell_db, *packages("conductor"))
    async with made.running():
        lost = await made.bus.listen(topics.BUILD_UNPLACEABLE.at())
        made.lives["losses"] = made.group.create_task(receive_all(lost, made.on_loss))
        for name in made.factories():
            made.start(name)
        await asyncio.sleep(5.0)
        yield made
    await made.placement_db.close()


@pytest.mark.parametrize("how", ["by hand", "in maintenance", "cleaned again", "gone"])
@in_virtual_time
async def test_a_build_that_finds_its_node_taken_is_active_on_another(how: str) -> None:
    async with cloud(nodes=2) as c:
        await c.kill("ironic_sync")
        await c.kill("agent")
        build = await c.build()
        await asyncio.sleep(1.0)
        ((_, root),) = (await c.held()).items()
        change: dict[str, dict[str, Any]] = {
            "by hand": {"instance_uuid": c.clock.uuid()},
            "in maintenance": {"maintenance": True},
            "cleaned again": {"provision_state": "clean wait"},
        }
        if how == "gone":
            del c.ironic.conductor.nodes[root]
        else:
            c.ironic.conductor.change(c.nodes[root], **change[how])
        c.start("agent")
        c.start("ironic_sync")
        assert await c.end_of(build) == "active"
        assert [tried.outcome for tried in c.ended[build].attempts] == ["failed", "built"]
        assert c.ended[build].root != root
        assert await c.held() == {build: c.ended[build].root}


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed == 3 else pytest.mark.soak) for seed in range(40)]
)
def test_after_random_faults_every_build_is_on_its_node(seed: int) -> None:
    """Ironic's operations fail, workers are killed, messages are repeated, and Ironic is unreachable."""

    @in_virtual_time
    async def sent() -> None:
        chance = random.Random(seed)
        times, calls = Durations.parse("exponential:3"), bool(seed % 2)
        plan = SimPlan(seed=seed, step_time=times, fail=0.15, call_back=calls)
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

    sent()


async def mend(c: MetalCloud) -> None:
    c.ironic.conductor.plan = SimPlan()
    await asyncio.sleep(60.0)
    for node in c.nodes.values():
        if node.provision_state == "clean failed":
            c.ironic.conductor.change(node, maintenance=False, provision_state="available")
            c.ironic.conductor.notify("update", "end", node, "req")
    await asyncio.sleep(60.0)


async def at_rest(c: MetalCloud, active: set[str]) -> None:
    in_use = {node.instance_uuid: uuid for uuid, node in c.nodes.items() if node.instance_uuid}
    assert in_use == {build: c.ended[build].root for build in active}, c.picture()
    assert await c.held() == in_use
    states = {node.provision_state for node in c.nodes.values() if node.instance_uuid is None}
    assert states <= {"available"}, c.picture()
    for uuid, node in c.nodes.items():
        assert await c.is_open(uuid) == (node.instance_uuid is None), c.picture()
