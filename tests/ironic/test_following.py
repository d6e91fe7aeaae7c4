"""A real Ironic is driven through the lives of its nodes, and placement follows every step by its events."""

import asyncio

import pytest

from tests.ironic.hall import CLOSED, OPEN, Hall

pytestmark = [pytest.mark.ironic, pytest.mark.services]


async def test_from_enrolment_to_the_pool_and_out_again(yard: Hall) -> None:
    node = await yard.create(driver_info={"berth_clean": 1})
    await yard.follows(node, CLOSED)
    await yard.move(node, "manage", "manageable")
    await yard.follows(node, CLOSED)
    await yard.patiently(yard.api.set_provision_state, node, "provide")
    await yard.reaches(node, "cleaning", unlocked=False)
    await yard.follows(node, CLOSED)
    await yard.reaches(node, "available")
    await yard.follows(node, OPEN)
    await yard.move(node, "manage", "manageable")
    await yard.follows(node, CLOSED)
    await yard.delete(node)
    await yard.until(lambda: yard.gone(node), "the provider is gone")


async def test_maintenance(yard: Hall) -> None:
    node = await yard.provided()
    for _ in range(2):
        await yard.patiently(yard.api.set_maintenance, node, True, "a disk is replaced")
        await yard.follows(node, CLOSED)
        await yard.patiently(yard.api.set_maintenance, node, False)
        await yard.follows(node, OPEN)
        await yard.change(node, maintenance=True)
        await yard.follows(node, CLOSED)
        await yard.change(node, maintenance=False)
        await yard.follows(node, OPEN)


async def test_traits(yard: Hall) -> None:
    node = await yard.provided()
    for traits in (["CUSTOM_GOLD", "HW_CPU_X86_VMX"], ["CUSTOM_GOLD", "CUSTOM_RAID"], []):
        await yard.patiently(yard.api.set_traits, node, traits)
        await yard.follows(node, OPEN, traits=traits)
    await yard.move(node, "manage", "manageable")
    await yard.patiently(yard.api.set_traits, node, ["CUSTOM_GOLD"])
    await yard.follows(node, CLOSED, traits=["CUSTOM_GOLD"])


async def test_resource_class(yard: Hall) -> None:
    """Again and again: of two changes within a second Ironic does not say which is the newer."""
    node = await yard.provided()
    for _ in range(5):
        await yard.change(node, resource_class="Bare.Metal-silver 2")
        await yard.follows(node, OPEN, resource_class="CUSTOM_BARE_METAL_SILVER_2")
        await yard.change(node, resource_class=None)
        await yard.change(node, extra__told="after that")
        await yard.follows(node, OPEN, resource_class="CUSTOM_BARE_METAL_SILVER_2")
        await yard.change(node, resource_class=yard.kind)
        await yard.follows(node, OPEN)


async def test_deployed_and_torn_down_by_somebody_else(yard: Hall) -> None:
    node = await yard.provided(driver_info={"berth_clean": 1})
    await yard.change(node, instance_uuid=yard.clock.uuid())
    await yard.follows(node, CLOSED)
    await yard.change(node, instance_uuid=None)
    await yard.follows(node, OPEN)
    await yard.change(node, instance_uuid=yard.clock.uuid())
    await yard.move(node, "active", "active")
    await yard.follows(node, CLOSED)
    await yard.patiently(yard.api.set_provision_state, node, "deleted")
    await yard.reaches(node, "cleaning", unlocked=False)
    await yard.follows(node, CLOSED)
    await yard.reaches(node, "available")
    await yard.follows(node, OPEN)


async def test_a_deploy_and_a_tear_down_that_fail(yard: Hall) -> None:
    node = await yard.provided(driver_info={"berth_deploy": "fail", "berth_tear_down": "fail"})
    await yard.change(node, instance_uuid=yard.clock.uuid())
    await yard.move(node, "active", "deploy failed")
    await yard.follows(node, CLOSED)
    await yard.move(node, "deleted", "error")
    await yard.follows(node, CLOSED)
    await yard.change(node, driver_info__berth_tear_down=None)
    await yard.move(node, "deleted", "available")
    await yard.follows(node, OPEN)


async def test_a_cleaning_that_fails(yard: Hall) -> None:
    node = await yard.provided()
    await yard.change(node, driver_info__berth_clean="fail")
    await yard.move(node, "manage", "manageable")
    await yard.move(node, "provide", "clean failed")
    await yard.follows(node, CLOSED)
    await yard.change(node, driver_info__berth_clean=None)
    await yard.patiently(yard.api.set_maintenance, node, False)
    await yard.move(node, "manage", "manageable")
    await yard.follows(node, CLOSED)
    await yard.move(node, "provide", "available")
    await yard.follows(node, OPEN)


@pytest.mark.parametrize("says", ["unreachable", "error"])
async def test_power_fails_and_comes_back(yard: Hall, says: str) -> None:
    node = await yard.provided()
    await yard.change(node, driver_info__berth_power=says)
    await yard.until(lambda: yard.is_so(node, fault="power failure"), "Ironic has noticed", 30.0)
    await yard.follows(node, CLOSED)
    await yard.change(node, driver_info__berth_power=None)
    await yard.until(lambda: yard.is_so(node, maintenance=False), "Ironic has noticed", 30.0)
    await yard.follows(node, OPEN)


async def test_power_is_switched(yard: Hall) -> None:
    node = await yard.provided()
    for target in ("power on", "power off", "rebooting"):
        await yard.patiently(yard.api.set_power_state, node, target)
        await yard.follows(node, OPEN)


async def test_a_retired_node_does_not_come_back(yard: Hall) -> None:
    node = await yard.provided()
    await yard.change(node, instance_uuid=yard.clock.uuid())
    await yard.move(node, "active", "active")
    await yard.change(node, retired=True)
    await yard.move(node, "deleted", "manageable")
    await yard.follows(node, CLOSED)
    await yard.change(node, retired=False)
    await yard.move(node, "provide", "available")
    await yard.follows(node, OPEN)


async def test_nodes_that_changed_while_nobody_listened(yard: Hall) -> None:
    """Their queue has kept what was said; what was never said is found by reading all."""
    kept, gone = await yard.provided(), await yard.provided()
    await yard.kill("ironic_sync")
    made = await yard.create()
    await yard.move(made, "manage", "manageable")
    await yard.move(made, "provide", "available")
    await yard.patiently(yard.api.set_maintenance, kept, True)
    await yard.delete(gone)
    yard.start("ironic_sync")
    await yard.follows(made, OPEN)
    await yard.follows(kept, CLOSED)
    await yard.until(lambda: yard.gone(gone), "the provider is gone")


async def test_ironic_dies_and_comes_back(yard: Hall) -> None:
    node = await yard.provided()
    await asyncio.to_thread(yard.ironic.kill)
    await asyncio.to_thread(yard.ironic.start)
    await yard.patiently(yard.api.set_maintenance, node, True)
    await yard.follows(node, CLOSED)
    await yard.patiently(yard.api.set_maintenance, node, False)
    await yard.follows(node, OPEN)
