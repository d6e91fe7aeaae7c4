"""Builds on bare metal from request to end: every worker, a simulated Ironic, and what may go wrong."""

import asyncio
import random
from typing import Any

import pytest

from compute_sim.core.faults import Durations
from compute_sim.ironic.conductor import SimPlan
from tests.support.metal_agent_world import MetalCloud, cloud
from tests.support.virtual_time import in_virtual_time


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
            seen[key] = (one.inventories["CUSTOM_BAREMETAL"].reserved, one.used["CUSTOM_BAREMETAL"])
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
        ours = dict.fromkeys(("deploying, ours", "active, ours", "deleting, ours"), (1, 1))
        assert seen == {**ours, "cleaning": (1, 0), "available": (0, 0)}
        assert await c.end_of(await c.build()) == "active"


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
            c.ironic.conductor.remove(c.nodes[root])
        else:
            c.ironic.conductor.change(c.nodes[root], **change[how])
        c.start("agent")
        c.start("ironic_sync")
        assert await c.end_of(build) == "active"
        assert [tried.outcome for tried in c.ended[build].attempts] == ["failed", "built"]
        assert c.ended[build].root != root
        assert await c.held() == {build: c.ended[build].root}


@pytest.mark.parametrize("seed", range(12))
def test_after_random_faults_every_build_is_on_its_node(seed: int) -> None:
    """Works that fail; workers killed; messages doubled and out of order; an Ironic that is away."""

    @in_virtual_time
    async def told() -> None:
        chance = random.Random(seed)
        times, calls = Durations.parse("exponential:3"), bool(seed % 2)
        plan = SimPlan(seed=seed, step_time=times, fail=0.15, call_back=calls, patience=1.0)
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
