"""A real Ironic is driven through the lives of its nodes, and placement follows every step by its events."""

import asyncio

import pytest

from tests.ironic.cloud import CLOSED, OPEN, IronicCloud

pytestmark = [pytest.mark.ironic, pytest.mark.services]


async def test_from_enrolment_to_the_pool_and_out_again(cloud: IronicCloud) -> None:
    node = await cloud.create(driver_info={"berth_clean": 1})
    await cloud.follows(node, CLOSED)
    await cloud.move(node, "manage", "manageable")
    await cloud.follows(node, CLOSED)
    await cloud.patiently(cloud.api.set_provision_state, node, "provide")
    await cloud.reaches(node, "cleaning", unlocked=False)
    await cloud.follows(node, CLOSED)
    await cloud.reaches(node, "available")
    await cloud.follows(node, OPEN)
    await cloud.move(node, "manage", "manageable")
    await cloud.follows(node, CLOSED)
    await cloud.delete(node)
    await cloud.until(lambda: cloud.gone(node), "the provider is gone")


async def test_maintenance(cloud: IronicCloud) -> None:
    node = await cloud.provided()
    for _ in range(2):
        await cloud.patiently(cloud.api.set_maintenance, node, True, "a disk is replaced")
        await cloud.follows(node, CLOSED)
        await cloud.patiently(cloud.api.set_maintenance, node, False)
        await cloud.follows(node, OPEN)
        await cloud.change(node, maintenance=True)
        await cloud.follows(node, CLOSED)
        await cloud.change(node, maintenance=False)
        await cloud.follows(node, OPEN)


async def test_traits(cloud: IronicCloud) -> None:
    node = await cloud.provided()
    for traits in (["CUSTOM_GOLD", "HW_CPU_X86_VMX"], ["CUSTOM_GOLD", "CUSTOM_RAID"], []):
        await cloud.patiently(cloud.api.set_traits, node, traits)
        await cloud.follows(node, OPEN, traits=traits)
    await cloud.move(node, "manage", "manageable")
    await cloud.patiently(cloud.api.set_traits, node, ["CUSTOM_GOLD"])
    await cloud.follows(node, CLOSED, traits=["CUSTOM_GOLD"])


async def test_nodes_deployed_by_another_client_close_and_open(cloud: IronicCloud) -> None:
    node = await cloud.provided(driver_info={"berth_clean": 1})
    await cloud.change(node, instance_uuid=cloud.clock.uuid())
    await cloud.follows(node, CLOSED)
    await cloud.change(node, instance_uuid=None)
    await cloud.follows(node, OPEN)
    await cloud.change(node, instance_uuid=cloud.clock.uuid())
    await cloud.move(node, "active", "active")
    await cloud.follows(node, CLOSED)
    await cloud.patiently(cloud.api.set_provision_state, node, "deleted")
    await cloud.reaches(node, "cleaning", unlocked=False)
    await cloud.follows(node, CLOSED)
    await cloud.reaches(node, "available")
    await cloud.follows(node, OPEN)


async def test_a_deploy_and_a_tear_down_that_fail(cloud: IronicCloud) -> None:
    node = await cloud.provided(driver_info={"berth_deploy": "fail", "berth_tear_down": "fail"})
    await cloud.change(node, instance_uuid=cloud.clock.uuid())
    await cloud.move(node, "active", "deploy failed")
    await cloud.follows(node, CLOSED)
    await cloud.move(node, "deleted", "error")
    await cloud.follows(node, CLOSED)
    await cloud.change(node, driver_info__berth_tear_down=None)
    await cloud.move(node, "deleted", "available")
    await cloud.follows(node, OPEN)


async def test_a_cleaning_that_fails(cloud: IronicCloud) -> None:
    node = await cloud.provided()
    await cloud.change(node, driver_info__berth_clean="fail")
    await cloud.move(node, "manage", "manageable")
    await cloud.move(node, "provide", "clean failed")
    await cloud.follows(node, CLOSED)
    await cloud.change(node, driver_info__berth_clean=None)
    await cloud.patiently(cloud.api.set_maintenance, node, False)
    await cloud.move(node, "manage", "manageable")
    await cloud.follows(node, CLOSED)
    await cloud.move(node, "provide", "available")
    await cloud.follows(node, OPEN)


@pytest.mark.parametrize("says", ["unreachable", "error"])
async def test_power_fails_and_comes_back(cloud: IronicCloud, says: str) -> None:
    node = await cloud.provided()
    await cloud.change(node, driver_info__berth_power=says)
    await cloud.until(lambda: cloud.is_so(node, fault="power failure"), "Ironic has noticed", 30.0)
    await cloud.follows(node, CLOSED)
    await cloud.change(node, driver_info__berth_power=None)
    await cloud.until(lambda: cloud.is_so(node, maintenance=False), "Ironic has noticed", 30.0)
    await cloud.follows(node, OPEN)


async def test_node_changes_while_ironic_sync_was_stopped(cloud: IronicCloud) -> None:
    kept, gone = await cloud.provided(), await cloud.provided()
    await cloud.kill("ironic_sync")
    made = await cloud.create()
    await cloud.move(made, "manage", "manageable")
    await cloud.move(made, "provide", "available")
    await cloud.patiently(cloud.api.set_maintenance, kept, True)
    await cloud.delete(gone)
    cloud.start("ironic_sync")
    await cloud.follows(made, OPEN)
    await cloud.follows(kept, CLOSED)
    await cloud.until(lambda: cloud.gone(gone), "the provider is gone")


async def test_ironic_dies_and_comes_back(cloud: IronicCloud) -> None:
    node = await cloud.provided()
    await asyncio.to_thread(cloud.ironic.kill)
    await asyncio.to_thread(cloud.ironic.start)
    await cloud.patiently(cloud.api.set_maintenance, node, True)
    await cloud.follows(node, CLOSED)
    await cloud.patiently(cloud.api.set_maintenance, node, False)
    await cloud.follows(node, OPEN)
