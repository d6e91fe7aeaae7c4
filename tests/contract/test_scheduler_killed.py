"""A scheduler stops between a claim and its publication: the build ends on the claimed host."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from bus import topics
from bus.delivery.runner import Bus
from bus.local import LocalTransport
from bus.messages import BuildRequested, InventoryReported
from bus.queries import FindBuilds
from bus.reports import Inventory, ProviderReport
from bus.requests import Flavor
from bus.resources import FindAllocations
from compute_sim import compute_sim
from compute_sim.fleet import SimHost
from scheduler_worker.placing import Claims
from tests.support.cloud_workers import a_scheduler_apart, claims_and_hangs
from tests.support.conductor_builders import CELL
from tests.support.ids import uid
from tests.support.metal_cloud import METAL, MetalCloud, cloud
from tests.support.virtual_time import in_virtual_time

FLAT, TREE, CHILDREN = uid(1, "a"), uid(2, "a"), (uid(21, "a"), uid(22, "a"))
AGENT = "vms"
FLAVORS = {
    "flat host": Flavor(name="flat", memory_mb=512),
    "children of a tree": Flavor(name="numa", extra_specs={"resources_c:VCPU": "4"}),
    "metal node": METAL,
}


async def hosts_of_virtual_machines(c: MetalCloud) -> None:
    flat = SimHost(
        root=FLAT,
        host="flat",
        zone="",
        inventory={"MEMORY_MB": Inventory(total=1024)},
    )

    async def live() -> None:
        async with Bus(LocalTransport(c.broker), c.clock) as bus:
            await bus.serve(compute_sim(AGENT, CELL, [flat], clock=c.clock), asyncio.Event())

    c.lives["vms"] = c.group.create_task(live())
    cpus = {"VCPU": Inventory(total=4)}
    numa = [ProviderReport(id=child, name=child, parent=TREE, inventories=cpus) for child in CHILDREN]
    root = ProviderReport(id=TREE, name="tree", inventories={})
    tree = InventoryReported(
        root=TREE, host="tree", cell=CELL, agent=AGENT, sequence=1, providers=(root, *numa)
    )
    await c.bus.publish(tree)
    await asyncio.sleep(5.0)


def schedule(c: MetalCloud, claims: Callable[[Bus], Claims] | None = None) -> None:
    async def live() -> None:
        async with Bus(LocalTransport(c.broker), c.clock) as bus, asyncio.TaskGroup() as group:
            for worker in a_scheduler_apart(bus, c.clock, claims(bus) if claims else None):
                group.create_task(bus.serve(worker, asyncio.Event()))

    c.lives["scheduler"] = c.group.create_task(live())


async def held(c: MetalCloud, builds: Sequence[str]) -> dict[str, set[str]]:
    found = await c.bus.asker(topics.ALLOCATIONS)(FindAllocations(consumers=tuple(builds)))
    return {consumer.id: set(consumer.allocations) for consumer in found.consumers}


@pytest.mark.parametrize("kind", FLAVORS)
@in_virtual_time
async def test_a_claim_nobody_was_told_of_is_told_by_the_next_scheduler(kind: str) -> None:
    async with cloud(nodes=2) as c:
        await hosts_of_virtual_machines(c)
        await c.kill("scheduler")
        schedule(c, claims_and_hangs)
        builds = [c.clock.uuid() for _ in range(2)]
        for build in builds:
            await c.bus.publish(
                BuildRequested(request=c.clock.uuid(), instances=(build,), flavor=FLAVORS[kind])
            )
            await asyncio.sleep(1.0)
        await asyncio.sleep(20.0)
        claimed = await held(c, builds)
        assert set(claimed) == set(builds)
        assert not c.ended
        await c.kill("scheduler")
        schedule(c)
        for build in builds:
            assert await c.end_of(build) == "active"
        assert await held(c, builds) == claimed
        for build in builds:
            assert {c.ended[build].root} == (claimed[build] if kind != "children of a tree" else {TREE})
        assert [tried.outcome for build in builds for tried in c.ended[build].attempts] == ["built"] * 2
        told = (await c.bus.asker(topics.FIND_BUILDS)(FindBuilds(builds=tuple(builds), cell=CELL))).builds
        for one in told:
            (provider,) = claimed[one.build]
            served = {"_c": (provider,)} if kind == "children of a tree" else {}
            assert one.placed.chosen.mappings == served
        for build in builds:
            await c.delete(build)
        await asyncio.sleep(60.0)
        assert await held(c, builds) == {}
