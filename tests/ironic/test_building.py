"""Build requests on the bus end on the nodes of a real Ironic, and what is deleted brings its node back."""

import asyncio

import pytest

from ironic_sync.agent.core.node import ATTEMPT
from tests.ironic.hall import CLOSED, OPEN, Hall
from tests.workers import scheduler_that_never_tells

pytestmark = [pytest.mark.ironic, pytest.mark.services]


async def test_a_build_ends_active_and_its_deletion_brings_the_node_back(yard: Hall) -> None:
    node = await yard.provided(driver_info={"berth_clean": 2})
    began = yard.clock.now()
    build = await yard.build()
    ended = await yard.ended(build)
    built = yard.clock.now()
    assert (ended.status, ended.root, [one.outcome for one in ended.attempts]) == ("active", node, ["built"])
    said = await yard.node(node)
    assert (said["provision_state"], said["instance_uuid"]) == ("active", build)
    assert said["instance_info"][ATTEMPT] == 1
    await yard.follows(node, CLOSED)
    assert await yard.held() == {build: node}
    again = await yard.build()
    assert "CUSTOM" in (await yard.unplaceable(again)).reason

    deleting = yard.clock.now()
    await yard.take_down(build)
    await yard.reaches(node, "cleaning", unlocked=False)
    await yard.until(yard.holds_nothing, "its resources are given back")
    given_back = yard.clock.now()
    await yard.follows(node, CLOSED)
    await yard.reaches(node, "available")
    await yard.follows(node, OPEN)
    print(
        f"\n  request → active {built - began:.2f} s, delete → given back {given_back - deleting:.2f} s,"
        f" delete → claimable after 2 s of cleaning {yard.clock.now() - deleting:.2f} s"
    )
    ended = await yard.ended(await yard.build())
    assert (ended.status, ended.root) == ("active", node)


async def test_as_many_builds_as_there_are_nodes(yard: Hall) -> None:
    nodes = {await yard.provided() for _ in range(4)}
    builds = [await yard.build() for _ in range(5)]
    (lost,) = (await yard.unplaceable(*builds)).instances
    ended = [await yard.any_end() for _ in range(4)]
    assert {one.root for one in ended} == nodes
    assert {one.status for one in ended} == {"active"}
    assert {one.build for one in ended} == set(builds) - {lost}
    for one in ended:
        await yard.take_down(one.build)
    for node in nodes:
        await yard.follows(node, OPEN, seconds=30.0)


async def test_the_scheduler_killed_between_claims_and_saying_so_costs_no_build(yard: Hall) -> None:
    """Six times at exactly that point, with builds on every node: all end where they are held."""
    kills, at_once = 6, 6
    nodes: set[str] = set()
    for _ in range(kills):
        nodes |= set(await asyncio.gather(*(yard.provided() for _ in range(at_once))))
    builds: list[str] = []
    for _ in range(kills):
        await yard.kill("scheduler")
        yard.start("scheduler", lambda bus: scheduler_that_never_tells(bus, yard.clock))
        builds += [await yard.build() for _ in range(at_once)]

        async def claimed(so_many: int = len(builds) - at_once + 1) -> bool:
            return len(await yard.held()) >= so_many

        await yard.until(claimed, "some of them are claimed")
        await yard.kill("scheduler")
        yard.start("scheduler")
    ended = {one.build: one for one in [await yard.any_end(120.0) for _ in builds]}
    assert set(ended) == set(builds)
    assert {one.status for one in ended.values()} == {"active"}
    assert await yard.held() == {build: one.root for build, one in ended.items()}
    assert {one.root for one in ended.values()} == nodes
    for build in builds:
        await yard.take_down(build)
    await yard.until(yard.holds_nothing, "all is given back", 120.0)


async def test_a_build_that_finds_its_node_taken_goes_to_another(yard: Hall) -> None:
    """It is taken after placement has last heard of it."""
    nodes = [await yard.provided() for _ in range(2)]
    await yard.kill("agent")
    build = await yard.build()
    await yard.until(yard.held, "it is placed")
    ((_, first),) = (await yard.held()).items()
    (other,) = set(nodes) - {first}
    await yard.change(first, instance_uuid=yard.clock.uuid())
    yard.start("agent")
    ended = await yard.ended(build)
    assert (ended.status, ended.root) == ("active", other)
    assert ["taken" in one.cause for one in ended.attempts] == [True, False]
    assert await yard.held() == {build: other}


async def test_a_deploy_that_fails_goes_to_another_node_and_leaves_its_own_clean(yard: Hall) -> None:
    nodes = [await yard.provided() for _ in range(2)]
    await yard.kill("agent")
    build = await yard.build()
    await yard.until(yard.held, "it is placed")
    ((_, first),) = (await yard.held()).items()
    await yard.change(first, driver_info__berth_deploy="fail")
    yard.start("agent")
    ended = await yard.ended(build)
    assert (ended.status, ended.root) == ("active", next(node for node in nodes if node != first))
    assert "the image could not be written" in ended.attempts[0].cause
    await yard.reaches(first, "available")
    await yard.follows(first, OPEN)


async def test_a_deploy_that_waits_is_ended_by_a_deletion(yard: Hall) -> None:
    node = await yard.provided(driver_info={"berth_deploy": "wait"})
    build = await yard.build()
    await yard.reaches(node, "wait call-back")
    await yard.follows(node, CLOSED)
    await yard.take_down(build)
    assert (await yard.ended(build)).status == "error"
    await yard.reaches(node, "available")
    await yard.follows(node, OPEN)
    await yard.until(yard.holds_nothing, "its resources are given back")


async def test_a_tear_down_that_fails_is_done_in_the_end(yard: Hall) -> None:
    node = await yard.provided(driver_info={"berth_tear_down": "fail"})
    build = await yard.build()
    assert (await yard.ended(build)).status == "active"
    await yard.take_down(build)
    await yard.reaches(node, "error")
    await yard.follows(node, CLOSED)
    await yard.change(node, driver_info__berth_tear_down=None)
    await yard.until(yard.holds_nothing, "its resources are given back", 60.0)
    await yard.follows(node, OPEN)


async def test_the_agent_and_ironic_die_in_the_midst_of_a_deploy(yard: Hall) -> None:
    node = await yard.provided(driver_info={"berth_deploy": "wait"})
    build = await yard.build()
    await yard.reaches(node, "wait call-back")
    await yard.kill("agent")
    await asyncio.to_thread(yard.ironic.kill)
    await yard.take_down(build)
    yard.start("agent")
    await asyncio.sleep(1.0)
    await asyncio.to_thread(yard.ironic.start)
    assert (await yard.ended(build, 60.0)).status == "error"
    await yard.follows(node, OPEN, seconds=60.0)
    await yard.change(node, driver_info__berth_deploy=None)
    assert (await yard.ended(await yard.build())).root == node
