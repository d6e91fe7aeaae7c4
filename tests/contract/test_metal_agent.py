"""The bare-metal agent before a simulated Ironic: builds and tear-downs."""

import asyncio

import pytest

from compute_sim.ironic.conductor import SimPlan
from ironic_sync.agent.core.node import SEEN
from ironic_sync.agent.core.steps import UNDONE
from tests.support.metal_agent_world import CALLS_BACK, QUIET, SLOW, US, metal_world
from tests.support.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_build_ends_active_and_its_destroy_ends_with_a_free_node() -> None:
    async with metal_world() as world:
        assert await world.order(world.build()) == [("built", "")]
        assert world.state() == ("active", US)
        assert await world.order(world.destroy()) == [("destroyed", "")]
        await world.until(lambda: world.state() == ("available", None))
        assert world.waiting() == 0


@in_virtual_time
async def test_a_destroy_ends_when_the_node_is_released_and_cleaning() -> None:
    async with metal_world(SLOW) as world:
        await world.order(world.build())
        assert await world.order(world.destroy()) == [("destroyed", "")]
        assert world.state() == ("cleaning", None)


@in_virtual_time
async def test_a_repeated_order_is_built_once() -> None:
    async with metal_world(SLOW) as world:
        await world.bus.publish(world.build(), world.build())
        assert await world.next_report() == ("built", "")
        assert await world.silence()
        assert await world.order(world.build()) == [("built", "")]
        assert sum(call.endswith("/states/provision") for call in world.line.calls) == 1
        assert world.waiting() == 0


@pytest.mark.parametrize(
    ("method", "status"), [("PUT", 500), ("PUT", 400), ("PUT", 403), ("PATCH", 400), ("PATCH", 403)]
)
@in_virtual_time
async def test_a_refusal_by_ironic_fails_the_attempt(method: str, status: int) -> None:
    """After the failure the node is available, and no instance is recorded on it."""
    async with metal_world() as world:
        world.line.refused = {method: status}
        assert await world.order(world.build()) == [("failed", f"Ironic refused ({status}): not here")]
        assert world.state() == ("available", None)


@in_virtual_time
async def test_an_agent_works_without_permission_to_store_its_record() -> None:
    async with metal_world(SLOW) as world:
        world.line.refused = {"PATCH": 403}
        assert await world.order(world.destroy()) == [("destroyed", "")]
        world.line.refused = {}
        world.nodes[0].driver_info = {"berth_deploy": "fail"}
        await world.bus.publish(world.build(attempt=2))
        await world.until(lambda: world.state() == ("deploying", US))
        world.line.refused = {"PATCH": 403}
        outcome, cause = await world.next_report()
        assert (outcome, "the image could not be written" in cause) == ("failed", True)
        assert world.state()[1] is None


@in_virtual_time
async def test_a_failed_deploy_is_undone_before_it_is_reported() -> None:
    async with metal_world() as world:
        world.nodes[0].driver_info = {"berth_deploy": "fail"}
        (reply,) = await world.order(world.build())
        why = "Deploy step deploy.deploy failed: the image could not be written"
        assert reply == ("failed", f"the node is deploy failed: {why}")
        assert world.state()[1] is None, "the next attempt may take the instance elsewhere at once"
        assert not world.leftover
        assert await world.order(world.build(node=1, attempt=2)) == [("built", "")]
        await world.until(lambda: world.state() == ("available", None))


@in_virtual_time
async def test_a_failed_deploy_without_tear_down_is_reported_and_destroyed() -> None:
    async with metal_world() as world:
        world.nodes[0].driver_info = {"berth_deploy": "fail", "berth_tear_down": "fail"}
        ((outcome, _),) = await world.order(world.build())
        assert (outcome, world.leftover, world.state()) == ("failed", True, ("error", None))
        world.nodes[0].driver_info = {}
        assert await world.order(world.destroy()) == [("destroyed", "")]
        await world.until(lambda: world.state() == ("available", None))


@in_virtual_time
async def test_a_failing_tear_down_is_retried_with_pauses() -> None:
    async with metal_world(SimPlan(fail=1.0)) as world:
        seen = {SEEN: [{"build": US, "attempt": 1}]}
        world.ironic.conductor.change(world.nodes[0], provision_state="active", instance_uuid=US, extra=seen)
        await world.bus.publish(world.destroy())
        await asyncio.sleep(QUIET)
        assert 5 < sum(call.endswith("/states/provision") for call in world.line.calls) < 50


@in_virtual_time
async def test_a_protected_instance_is_destroyed_when_its_protection_ends() -> None:
    async with metal_world() as world:
        await world.order(world.build())
        world.ironic.conductor.change(world.nodes[0], protected=True)
        await world.bus.publish(world.destroy())
        await asyncio.sleep(60.0)
        assert world.state() == ("active", US)
        world.ironic.conductor.change(world.nodes[0], protected=False)
        assert await world.next_report() == ("destroyed", "")


@pytest.mark.parametrize("state", ["deploying", "wait call-back", "deploy hold"])
@in_virtual_time
async def test_a_destroy_ends_a_deploy_in_any_state(state: str) -> None:
    async with metal_world(CALLS_BACK) as world:
        await world.bus.publish(world.build())
        await world.until(
            lambda: world.state() == ("wait call-back" if state == "deploy hold" else state, US)
        )
        world.ironic.conductor.change(world.nodes[0], provision_state=state)
        assert await world.order(world.destroy()) == [("destroyed", "")]
        assert world.state()[1] is None
        assert await world.silence(), "of the build nothing is heard any more"
        assert world.state() == ("available", None)
        assert world.waiting() == 0
        assert await world.order(world.build()) == [("destroyed", "")]


@in_virtual_time
async def test_a_destroy_before_its_build_prevents_the_build() -> None:
    async with metal_world() as world:
        assert await world.order(world.destroy()) == [("destroyed", "")]
        await world.kill()
        world.start()
        assert await world.order(world.build()) == [("failed", UNDONE)]
        assert world.state() == ("available", None)
        assert await world.order(world.build(attempt=2)) == [("built", "")]


@in_virtual_time
async def test_the_next_attempt_waits_for_the_tear_down_of_the_previous_one() -> None:
    """Ironic permits an instance on one node only."""
    async with metal_world(SLOW) as world:
        await world.order(world.build())
        await world.bus.publish(world.build(node=1, attempt=2), world.destroy())
        assert [await world.next_report(), await world.next_report()] == [("destroyed", ""), ("built", "")]
        assert (world.state(0)[1], world.state(1)) == (None, ("active", US))
