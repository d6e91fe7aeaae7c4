"""Bare metal shared by five agents, in virtual time: crashes, stopped processes, never two at one node."""

import asyncio
import logging

import pytest

from tests.support.ring_world import RingCloud, ring_cloud
from tests.support.virtual_time import run

FIVE_SECONDS = 5.0
MOST_MOVE = 1 / 5 * 1.1
SEEDS = 40
_ALWAYS = 2
WHAT_HAPPENS = ("build", "delete", "kill", "stop", "conductor", "edit")


@pytest.fixture(autouse=True)
def quietly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


async def killed_and_followed(cloud: RingCloud, name: str) -> float:
    before = cloud.owners()
    free = {root for root, owner in before.items() if owner == name} - cloud.books.occupied()
    await cloud.kill(name)
    took = await cloud.until(lambda: free <= cloud.known().keys())
    await asyncio.sleep(5.0)
    after = cloud.owners()
    moved = {root for root in before if before[root] != after[root]}
    assert moved == free
    assert len(moved) <= MOST_MOVE * len(before)
    return took


async def troubled(nodes: int, seed: int, seconds: float) -> RingCloud:
    """Builds and deletions, while everybody is killed or stopped at any moment; then what is promised."""
    async with ring_cloud(nodes, seed=seed) as cloud:
        loop, chance = asyncio.get_running_loop(), cloud.chance
        end = loop.time() + seconds
        deleted: set[str] = set()
        while loop.time() < end:
            await asyncio.sleep(chance.expovariate(2.0))
            cloud.known()
            active = [build for build, end in cloud.ended.items() if end.status == "active"]
            match chance.choices(WHAT_HAPPENS, (8, 4, 2, 3, 1, 1))[0]:
                case "build":
                    await cloud.build()
                case "delete" if active:
                    build = chance.choice(sorted(active))
                    deleted.add(build)
                    await cloud.delete(build)
                case "kill":
                    name = chance.choice(sorted(cloud.agents))
                    await cloud.kill(name)
                    await asyncio.sleep(chance.choice((0.0, 1.0, 6.0)))
                    cloud.start(name)
                case "stop":
                    one = chance.choice([process for _, process in sorted(cloud.agents.items())])
                    one.process.stop()
                    loop.call_later(chance.choice((0.2, 1.9, 2.4, 3.0, 8.0)), one.process.go_on)
                case "conductor":
                    name = chance.choice(["conductor0", "conductor1"])
                    await cloud.kill(name)
                    await asyncio.sleep(chance.choice((0.0, 1.0)))
                    cloud.conduct(name)
                case "edit":
                    name = chance.choice(sorted(cloud.agents))
                    await cloud.edit(agent=name, edit=chance.choice(("disable", "enable", "rehome")))
        for agent in cloud.agents.values():
            agent.process.go_on()
        for name in cloud.agents:
            await cloud.edit(agent=name, edit="enable")
        await cloud.until(lambda: cloud.ended.keys() == cloud.placed.keys(), why="every build ends")
        for build in deleted:
            await cloud.delete(build)
        running = {build for build, end in cloud.ended.items() if end.status == "active"} - deleted
        await cloud.until(
            lambda: cloud.books.held.keys() == running, why="what is active holds its node, and nothing else"
        )
        await cloud.until(lambda: set(cloud.known()) == set(cloud.owners()), why="every node has an agent")
        assert {cloud.ended[build].root for build in running} == {
            uuid for uuid, node in cloud.nodes.items() if node.instance_uuid
        }
        await asyncio.sleep(20.0)
        assert await killed_and_followed(cloud, "metal3") <= FIVE_SECONDS
        assert cloud.faults == []
        assert cloud.writes > 10
        return cloud


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed < _ALWAYS else pytest.mark.soak) for seed in range(SEEDS)]
)
def test_one_agent_per_node_and_one_end_per_build(seed: int) -> None:
    run(troubled(60, seed, 40.0))
