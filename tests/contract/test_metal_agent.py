"""The bare-metal agent before a simulated Ironic: builds and tear-downs."""

import asyncio

import pytest

from compute_sim.ironic.conductor import SimPlan
from ironic_sync.agent.core.node import SEEN
from tests.support.metal_agent_world import QUIET, SLOW, US, metal_world
from tests.support.virtual_time import in_virtual_time


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
async def test_a_failing_tear_down_is_retried_with_pauses() -> None:
    async with metal_world(SimPlan(fail=1.0)) as world:
        seen = {SEEN: [{"build": US, "attempt": 1}]}
        world.ironic.conductor.change(world.nodes[0], provision_state="active", instance_uuid=US, extra=seen)
        await world.bus.publish(world.destroy())
        await asyncio.sleep(QUIET)
        assert 5 < sum(call.endswith("/states/provision") for call in world.line.calls) < 50


@in_virtual_time
async def test_the_next_attempt_waits_for_the_tear_down_of_the_previous_one() -> None:
    """Ironic permits an instance on one node only."""
    async with metal_world(SLOW) as world:
        await world.order(world.build())
        await world.bus.publish(world.build(node=1, attempt=2), world.destroy())
        assert [await world.next_report(), await world.next_report()] == [("destroyed", ""), ("built", "")]
        assert (world.state(0)[1], world.state(1)) == (None, ("active", US))
