"""Build requests on the bus end on the nodes of a real Ironic, and what is deleted brings its node back."""

import asyncio
from contextlib import suppress
from functools import partial

import pytest

from ironic_sync.agent.core.node import ATTEMPT
from ironic_sync.api import IronicRefused
from tests.ironic.cloud import CLOSED, OPEN, IronicCloud

pytestmark = [pytest.mark.ironic, pytest.mark.services]


async def test_a_build_ends_active_and_its_deletion_brings_the_node_back(cloud: IronicCloud) -> None:
    node = await cloud.provided(driver_info={"berth_clean": 2})
    build = await cloud.build()
    ended = await cloud.ended(build)
    assert (ended.status, ended.root) == ("active", node)
    assert [attempt.outcome for attempt in ended.attempts] == ["built"]
    reply = await cloud.node(node)
    assert (reply["provision_state"], reply["instance_uuid"]) == ("active", build)
    assert reply["instance_info"][ATTEMPT] == 1
    await cloud.follows(node, CLOSED)
    assert await cloud.held() == {build: node}
    again = await cloud.build()
    assert "CUSTOM" in (await cloud.unplaceable(again)).reason

    await cloud.take_down(build)
    await cloud.reaches(node, "cleaning", unlocked=False)
    await cloud.until(cloud.holds_nothing, "its resources are given back")
    await cloud.follows(node, CLOSED)
    await cloud.reaches(node, "available")
    await cloud.follows(node, OPEN)
    ended = await cloud.ended(await cloud.build())
    assert (ended.status, ended.root) == ("active", node)


MOMENTS = ("unseen before the claim", "during the claim", "before the order", "with the order")


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_node_whose_class_changes_while_a_build_claims_it_has_one_holder(
    cloud: IronicCloud, moment: str
) -> None:
    node, two = await cloud.provided(), f"{cloud.resource_class}_TWO"
    reclassing = partial(cloud.change, node, resource_class=f"{cloud.kind}-two")
    await cloud.kill("agent")
    if moment == "unseen before the claim":
        await cloud.kill("ironic_sync")
        await reclassing()
    builds = [await cloud.build()]
    if moment == "during the claim":
        await reclassing()
    else:
        await cloud.until(cloud.held, "it is placed")
    if moment == "unseen before the claim":
        cloud.start("ironic_sync")
    elif moment == "before the order":
        await reclassing()
    if moment == "with the order":
        cloud.start("agent")
        with suppress(IronicRefused):  # the agent was faster
            await reclassing()
    else:
        await cloud.until(partial(cloud.has_class, node, two), "placement has the new class")
    builds.append(await cloud.build(cloud.flavor_of(two)))
    if moment in ("unseen before the claim", "before the order"):
        await cloud.unplaceable(builds.pop())
        assert await cloud.held() == {builds[0]: node}
    assert await cloud.breaches() == []
    if moment != "with the order":
        cloud.start("agent")
    ends = await cloud.outcomes(*builds)
    assert ends.count("active") <= 1
    assert await cloud.breaches() == []
    for build, status in zip(builds, ends, strict=True):
        if status == "active":
            await cloud.take_down(build)
    await cloud.until(cloud.holds_nothing, "its resources are given back")
    await cloud.reaches(node, "available")
    present = "" if (await cloud.node(node))["resource_class"] == cloud.kind else two
    await cloud.follows(node, OPEN, resource_class=present)
    again = await cloud.build(cloud.flavor_of(present or cloud.resource_class))
    assert (await cloud.ended(again)).status == "active"


async def test_ironic_refuses_another_class_for_a_deployed_node(cloud: IronicCloud) -> None:
    node = await cloud.provided()
    assert (await cloud.ended(await cloud.build())).status == "active"
    with pytest.raises(IronicRefused):
        await cloud.change(node, resource_class=f"{cloud.kind}-two")
    await cloud.follows(node, CLOSED)


async def test_a_build_deleted_before_its_order_opens_the_new_class_of_its_node(cloud: IronicCloud) -> None:
    node, two = await cloud.provided(), f"{cloud.resource_class}_TWO"
    await cloud.kill("agent")
    build = await cloud.build()
    await cloud.until(cloud.held, "it is placed")
    await cloud.change(node, resource_class=f"{cloud.kind}-two")
    await cloud.until(partial(cloud.has_class, node, two), "placement has the new class")
    await cloud.kill("ironic_sync")  # the release alone opens the class
    await cloud.take_down(build)
    cloud.start("agent")
    await cloud.until(cloud.holds_nothing, "its resources are given back")
    await cloud.follows(node, OPEN, resource_class=two)


async def test_a_failed_deploy_moves_to_another_node_and_cleans_the_first(cloud: IronicCloud) -> None:
    nodes = [await cloud.provided() for _ in range(2)]
    await cloud.kill("agent")
    build = await cloud.build()
    await cloud.until(cloud.held, "it is placed")
    ((_, first),) = (await cloud.held()).items()
    await cloud.change(first, driver_info__berth_deploy="fail")
    cloud.start("agent")
    ended = await cloud.ended(build)
    assert (ended.status, ended.root) == ("active", next(node for node in nodes if node != first))
    assert "the image could not be written" in ended.attempts[0].cause
    await cloud.reaches(first, "available")
    await cloud.follows(first, OPEN)


async def test_a_deploy_that_waits_is_ended_by_a_deletion(cloud: IronicCloud) -> None:
    node = await cloud.provided(driver_info={"berth_deploy": "wait"})
    build = await cloud.build()
    await cloud.reaches(node, "wait call-back")
    await cloud.follows(node, CLOSED)
    await cloud.take_down(build)
    assert (await cloud.ended(build)).status == "error"
    await cloud.reaches(node, "available")
    await cloud.follows(node, OPEN)
    await cloud.until(cloud.holds_nothing, "its resources are given back")


async def test_a_deploy_that_waits_on_a_node_in_maintenance_goes_to_another_node(cloud: IronicCloud) -> None:
    nodes = [await cloud.provided(driver_info={"berth_deploy": "wait"}) for _ in range(2)]
    build = await cloud.build()
    await cloud.until(cloud.held, "it is placed")
    ((_, first),) = (await cloud.held()).items()
    (other,) = set(nodes) - {first}
    await cloud.reaches(first, "wait call-back")
    await cloud.change(other, driver_info__berth_deploy=None)
    await cloud.patiently(cloud.api.set_maintenance, first, True, "a fan")
    ended = await cloud.ended(build, 60.0)
    assert (ended.status, ended.root) == ("active", other)
    assert "in maintenance" in ended.attempts[0].cause and "a fan" in ended.attempts[0].cause
    assert (await cloud.node(first))["instance_uuid"] is None


async def test_a_tear_down_that_fails_is_done_in_the_end(cloud: IronicCloud) -> None:
    node = await cloud.provided(driver_info={"berth_tear_down": "fail"})
    build = await cloud.build()
    assert (await cloud.ended(build)).status == "active"
    await cloud.take_down(build)
    await cloud.reaches(node, "error")
    await cloud.follows(node, CLOSED)
    await cloud.change(node, driver_info__berth_tear_down=None)
    await cloud.until(cloud.holds_nothing, "its resources are given back", 60.0)
    await cloud.follows(node, OPEN)


async def test_the_agent_and_ironic_die_in_the_midst_of_a_deploy(cloud: IronicCloud) -> None:
    node = await cloud.provided(driver_info={"berth_deploy": "wait"})
    build = await cloud.build()
    await cloud.reaches(node, "wait call-back")
    await cloud.kill("agent")
    await asyncio.to_thread(cloud.ironic.kill)
    await cloud.take_down(build)
    cloud.start("agent")
    await asyncio.sleep(1.0)
    await asyncio.to_thread(cloud.ironic.start)
    assert (await cloud.ended(build, 60.0)).status == "error"
    await cloud.follows(node, OPEN, seconds=60.0)
    await cloud.change(node, driver_info__berth_deploy=None)
    assert (await cloud.ended(await cloud.build())).root == node
