"""The bare-metal agent over a long deployment: progress reports, a kill, and the continuation."""

import asyncio
import re

import pytest

from bus.messages import AgentReported
from compute_sim.core.faults import Durations
from compute_sim.ironic.conductor import SimPlan
from ironic_sync.agent.core.node import SEEN
from ironic_sync.agent.core.steps import UNDONE
from tests.support.metal_agent_world import CALLS_BACK, QUIET, SLOW, US, metal_world
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
async def test_a_deploy_may_take_longer_than_rabbitmq_lets_an_order_be_held() -> None:
    async with metal_world(SimPlan(step_time=Durations("constant", (4000.0,)))) as world:
        await world.bus.publish(world.build())
        async with asyncio.timeout(5000.0):
            while (message := await world.reports.get()).outcome == "progress":
                pass
        assert message.outcome == "built"
        node = f"/v1/nodes/{message.root}"
        assert world.calls() == [f"PATCH {node}", f"PUT {node}/states/provision"]
        assert await world.silence()


@in_virtual_time
async def test_progress_reports_end_after_a_time() -> None:
    async with metal_world(progress_every=5.0, patience=60.0) as world:
        world.line.cut = True
        await world.bus.publish(world.build())
        reply: list[AgentReported] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000.0):
                while True:
                    reply.append(await world.reports.get())
        assert 5 <= len(reply) <= 13


@in_virtual_time
async def test_heartbeats_count_builds_while_ironic_is_reachable() -> None:
    async with metal_world(SLOW, period=5.0) as world:
        assert (await world.beats.get()).hosts == ()
        await world.bus.publish(world.build())
        async with asyncio.timeout(30.0):
            while not (beat := await world.beats.get()).hosts:
                pass
        assert [(host.root, host.host, host.building) for host in beat.hosts] == [
            (world.nodes[0].uuid, world.nodes[0].uuid, 1)
        ]
        assert await world.next_report() == ("built", "")
        async with asyncio.timeout(30.0):
            while (beat := await world.beats.get()).hosts[0].building:
                pass
        world.line.cut = True
        await asyncio.sleep(30.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(QUIET):
                for _ in range(10):
                    await world.beats.get()


@pytest.mark.parametrize("jump", [3600.0, -3600.0], ids=["forward", "back"])
@in_virtual_time
async def test_clock_jumps_do_not_change_heartbeats_and_time_limits(jump: float) -> None:
    async with metal_world(SLOW, period=5.0, progress_every=5.0, patience=600.0) as world:
        world.ahead = 7200.0
        before = await world.beats.get()
        await world.bus.publish(world.build())
        await world.until(lambda: world.state() == ("deploying", US))
        world.ahead += jump
        after = await world.beats.get()
        assert (after.run, after.sequence > before.sequence) == (before.run, True)
        async with asyncio.timeout(10.0):
            assert (await world.reports.get()).outcome == "progress"
        await world.kill()
        world.start()
        async with asyncio.timeout(30.0):
            while (await world.beats.get()).run == before.run:
                pass


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


@pytest.mark.parametrize("seconds", [0.0, 1.0, 10.0, 30.0, 31.0, 59.0, 61.0])
@in_virtual_time
async def test_a_restarted_agent_ends_its_earlier_deploy_if_a_destroy_order_waits(seconds: float) -> None:
    async with metal_world(CALLS_BACK) as world:
        await world.bus.publish(world.build())
        await asyncio.sleep(seconds)
        await world.kill()
        await world.bus.publish(world.destroy())
        world.start()
        if (reply := await world.next_report()) == ("built", ""):
            reply = await world.next_report()
        assert reply == ("destroyed", "")
        await world.until(lambda: world.state() == ("available", None))
        await world.kill()
        world.start()
        assert await world.order(world.build()) == [("failed", UNDONE)]
        assert (world.state(), world.waiting()) == (("available", None), 0)
