"""The bare-metal agent over a long deployment: progress reports, a kill, and the continuation."""

import asyncio
import re

import pytest

from compute_sim.core.faults import Durations
from compute_sim.ironic.conductor import SimPlan
from ironic_sync.agent.core.node import SEEN
from tests.support.metal_agent_world import QUIET, US, metal_world
from tests.support.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_build_waits_for_a_locked_node() -> None:
    async with metal_world() as world:
        world.ironic.conductor.change(world.nodes[0], reservation="another conductor")
        await world.bus.publish(world.build())
        await asyncio.sleep(20.0)
        world.ironic.conductor.change(world.nodes[0], reservation=None)
        assert await world.next_report() == ("built", "")


@in_virtual_time
async def test_orders_wait_and_report_progress_while_ironic_is_unreachable() -> None:
    async with metal_world(progress_every=5.0, patience=60.0) as world:
        world.line.cut = True
        await world.bus.publish(world.build())
        async with asyncio.timeout(QUIET):
            progress = [await world.reports.get() for _ in range(3)]
        assert {(report.outcome, report.build, report.attempt, report.root) for report in progress} == {
            ("progress", US, 1, world.nodes[0].uuid)
        }
        world.line.cut = False
        assert await world.next_report() == ("built", "")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(QUIET):
                await world.reports.get()


@in_virtual_time
async def test_notifications_speed_up_an_agent_and_are_not_required() -> None:
    events = []

    async def news(handle: object) -> None:
        events.append(handle)
        await asyncio.Event().wait()

    async with metal_world(SimPlan(step_time=Durations("constant", (100.0,))), notifications=news) as world:
        began = world.clock.now()
        await world.bus.publish(world.build())
        await world.until(lambda: world.state() == ("active", US))
        events[0](world.nodes[0].uuid)  # type: ignore[operator]
        assert await world.next_report() == ("built", "")
        assert world.clock.now() - began < 100.1
        await world.bus.publish(world.build(node=1, build=2))
        assert await world.next_report() == ("built", "")


@pytest.mark.parametrize("comes_out", [False, True])
@in_virtual_time
async def test_a_build_waits_a_limited_time_for_a_node_in_maintenance(comes_out: bool) -> None:
    plan = SimPlan(step_time=Durations("constant", (400.0,)), call_back=True)
    async with metal_world(plan, maintenance_patience=120.0) as world:
        await world.bus.publish(world.build())
        await world.until(lambda: world.state()[0] == "wait call-back", 1000.0)
        world.ironic.conductor.change(world.nodes[0], maintenance=True, maintenance_reason="a fan")
        if comes_out:
            await asyncio.sleep(100.0)
            world.ironic.conductor.change(world.nodes[0], maintenance=False)
            assert await world.next_report(2000.0) == ("built", "")
            return
        began = world.clock.monotonic()
        await world.until(lambda: world.state()[0] == "deleting")
        assert 120.0 <= world.clock.monotonic() - began < 150.0
        outcome, cause = await world.next_report(1000.0)
        assert (outcome, world.retry) == ("failed", True)
        assert re.search(r"in maintenance for 1[23][0-9] s: a fan$", cause)
        assert world.state()[1] is None


@pytest.mark.parametrize("fault", [None, "deploy"])
def test_a_killed_agent_continues_from_ironics_state(fault: str | None) -> None:
    @in_virtual_time
    async def once(kill_at: int) -> None:
        async with metal_world(nodes=1) as world:
            if fault is not None:
                world.nodes[0].driver_info = {"berth_deploy": "fail"}
            world.line.moments, world.line.kill_at = 0, kill_at
            (reply,) = await world.order(world.build())
            if fault is None:
                assert (reply, world.state()) == (("built", ""), ("active", US))
            else:
                assert reply[0] == "failed" and "the image could not be written" in reply[1]
                assert world.state()[1] is None
            assert await world.order(world.destroy()) == [("destroyed", "")]
            await world.until(lambda: world.state() == ("available", None))
            assert [one["build"] for one in world.nodes[0].extra[SEEN]] == [US]
            assert world.waiting() == 0
            moments.append(world.line.moments)

    moments: list[int] = []
    once(0)
    for moment in range(1, moments[0] + 1):
        once(moment)
    assert moments[0] > 12
