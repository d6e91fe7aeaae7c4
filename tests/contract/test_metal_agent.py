"""The bare-metal agent before a simulated Ironic: what becomes of nodes, what it reports, come what may."""

import asyncio

import pytest
from msgspec.structs import replace

from bus.messages import AgentReported
from bus.vocabulary import Image
from compute_sim.core import Durations
from compute_sim.ironic import SimPlan
from ironic_sync.agent.core.node import SEEN
from ironic_sync.agent.core.steps import UNDONE
from tests.cells import an_id
from tests.metal_world import QUIET, SPEC, MetalWorld, metal_world
from tests.simulation.clockwork import in_virtual_time

US, THEM = an_id(1), an_id(2)
SLOW = SimPlan(step_time=Durations("constant", (60.0,)))
CALLS_BACK = SimPlan(step_time=Durations("constant", (60.0,)), call_back=True)


def of_node(world: MetalWorld) -> list[str]:
    """What the agent asked about the first node, in order, without the reads."""
    return [call for call in world.line.calls if not call.startswith("GET")]


@in_virtual_time
async def test_a_build_ends_active_and_its_destroy_ends_with_a_free_node() -> None:
    async with metal_world() as world:
        assert await world.order(world.build()) == [("built", "")]
        assert world.state() == ("active", US)
        assert await world.order(world.destroy()) == [("destroyed", "")]
        await world.until(lambda: world.state() == ("available", None))
        assert world.waiting() == 0


@in_virtual_time
async def test_the_destroy_is_done_when_the_node_is_out_of_our_hands_and_cleaning() -> None:
    async with metal_world(SLOW) as world:
        await world.order(world.build())
        assert await world.order(world.destroy()) == [("destroyed", "")]
        assert world.state() == ("cleaning", None)


@in_virtual_time
async def test_an_order_that_comes_twice_is_built_once() -> None:
    async with metal_world(SLOW) as world:
        await world.bus.publish(world.build(), world.build())
        assert await world.next_report() == ("built", "")
        assert await world.silence()
        assert await world.order(world.build()) == [("built", "")]
        assert sum(call.endswith("/states/provision") for call in world.line.calls) == 1
        assert world.waiting() == 0


@in_virtual_time
async def test_an_order_that_is_said_again_and_again_makes_no_more_work() -> None:
    """As the conductor does while it hears nothing for long: whoever was handed it last goes on alone."""
    reads = {}
    for times in (1, 20):
        async with metal_world(SimPlan(step_time=Durations("constant", (200.0,)))) as world:
            for _ in range(times):
                await world.bus.publish(world.build())
            assert await world.next_report() == ("built", "")
            reads[times] = sum(call.startswith("GET") for call in world.line.calls)
    assert reads[20] <= reads[1] + 2 * 20


@pytest.mark.parametrize(
    ("field", "value", "cause"),
    [
        ("instance_uuid", THEM, f"the node is taken: it has the instance {THEM}"),
        ("maintenance", True, "the node is in maintenance: no reason is given"),
        ("provision_state", "manageable", "the node is manageable, not available"),
        ("provision_state", "cleaning", "the node is cleaning, not available"),
        ("resource_class", "gold", "the node is of the class CUSTOM_GOLD, not of CUSTOM_BAREMETAL"),
    ],
)
@in_virtual_time
async def test_a_build_that_finds_its_node_taken_is_tried_elsewhere(
    field: str, value: object, cause: str
) -> None:
    async with metal_world() as world:
        world.ironic.conductor.change(world.nodes[0], **{field: value})
        assert await world.order(world.build()) == [("failed", cause)]
        assert of_node(world) == []
        assert await world.order(world.build(node=1, attempt=2)) == [("built", "")]


@in_virtual_time
async def test_a_node_that_is_no_more() -> None:
    async with metal_world() as world:
        world.ironic.conductor.remove(world.nodes[0])
        assert await world.order(world.build(), world.destroy()) == [
            ("failed", "Ironic has no such node"),
            ("destroyed", ""),
        ]


@pytest.mark.parametrize(
    ("method", "status"), [("PUT", 500), ("PUT", 400), ("PUT", 403), ("PATCH", 400), ("PATCH", 403)]
)
@in_virtual_time
async def test_what_ironic_will_not_do_is_tried_elsewhere(method: str, status: int) -> None:
    """And nothing is left behind: not even our name."""
    async with metal_world() as world:
        world.line.refused = {method: status}
        assert await world.order(world.build()) == [("failed", f"Ironic refused ({status}): not here")]
        assert world.state() == ("available", None)


@in_virtual_time
async def test_where_we_may_not_write_what_we_remember_we_do_without() -> None:
    async with metal_world(SLOW) as world:
        world.line.refused = {"PATCH": 403}
        assert await world.order(world.destroy()) == [("destroyed", "")]
        world.line.refused = {}
        world.ironic.conductor.plan_fault(world.nodes[0], "deploy", "step")
        await world.bus.publish(world.build(attempt=2))
        await world.until(lambda: world.state() == ("deploying", US))
        world.line.refused = {"PATCH": 403}
        outcome, cause = await world.next_report()
        assert (outcome, "the image could not be written" in cause) == ("failed", True)
        assert world.state()[1] is None


@in_virtual_time
async def test_a_deploy_that_fails_is_undone_before_it_is_told() -> None:
    async with metal_world() as world:
        world.ironic.conductor.plan_fault(world.nodes[0], "deploy", "step")
        (said,) = await world.order(world.build())
        assert said == (
            "failed",
            "the node is deploy failed: Deploy step deploy.deploy failed: the image could not be written",
        )
        assert world.state()[1] is None, "the next attempt may take the instance elsewhere at once"
        assert await world.order(world.build(node=1, attempt=2)) == [("built", "")]
        await world.until(lambda: world.state() == ("available", None))


@in_virtual_time
async def test_a_tear_down_that_fails_is_tried_again_until_it_is_done() -> None:
    async with metal_world() as world:
        await world.order(world.build())
        world.ironic.conductor.plan_fault(world.nodes[0], "delete", "step")
        assert await world.order(world.destroy()) == [("destroyed", "")]
        await world.until(lambda: world.state() == ("available", None))


@in_virtual_time
async def test_a_tear_down_that_fails_for_ever_is_not_tried_for_ever_as_fast_as_can_be() -> None:
    async with metal_world(SimPlan(fail=1.0)) as world:
        seen = {SEEN: [{"build": US, "attempt": 1}]}
        world.ironic.conductor.change(world.nodes[0], provision_state="active", instance_uuid=US, extra=seen)
        await world.bus.publish(world.destroy())
        await asyncio.sleep(QUIET)
        assert 5 < sum(call.endswith("/states/provision") for call in world.line.calls) < 50


@in_virtual_time
async def test_a_protected_instance_is_destroyed_once_it_no_longer_is() -> None:
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
async def test_a_destroy_ends_a_deploy_wherever_it_is(state: str) -> None:
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
async def test_a_destroy_of_what_never_was_built_closes_the_node_to_the_order_that_comes_late() -> None:
    async with metal_world() as world:
        assert await world.order(world.destroy()) == [("destroyed", "")]
        await world.kill()
        world.start()
        assert await world.order(world.build()) == [("failed", UNDONE)]
        assert world.state() == ("available", None)
        assert await world.order(world.build(attempt=2)) == [("built", "")]


@in_virtual_time
async def test_a_destroy_touches_nothing_of_others() -> None:
    async with metal_world() as world:
        await world.order(world.build(build=2))
        calls = of_node(world)
        assert await world.order(world.destroy()) == [("destroyed", "")]
        assert of_node(world) == calls
        assert world.state() == ("active", THEM)


@in_virtual_time
async def test_the_next_attempt_waits_until_the_last_has_let_go() -> None:
    """Ironic lets an instance be on one node only."""
    async with metal_world(SLOW) as world:
        await world.order(world.build())
        await world.bus.publish(world.build(node=1, attempt=2), world.destroy())
        assert [await world.next_report(), await world.next_report()] == [("destroyed", ""), ("built", "")]
        assert (world.state(0)[1], world.state(1)) == (None, ("active", US))


@in_virtual_time
async def test_an_order_that_was_overtaken_by_the_next_attempt_elsewhere_is_void() -> None:
    async with metal_world() as world:
        await world.order(world.build(node=1, attempt=2))
        assert await world.order(world.build(node=0, attempt=1)) == [("destroyed", "")]
        assert (world.state(0), world.state(1)) == (("available", None), ("active", US))


@in_virtual_time
async def test_a_node_that_is_locked_for_a_while_is_waited_for() -> None:
    async with metal_world() as world:
        world.ironic.conductor.change(world.nodes[0], reservation="another conductor")
        await world.bus.publish(world.build())
        await asyncio.sleep(20.0)
        world.ironic.conductor.unlock(world.nodes[0])
        assert await world.next_report() == ("built", "")


@in_virtual_time
async def test_while_ironic_is_away_orders_wait_and_the_conductor_is_told_that_they_do() -> None:
    async with metal_world(progress_every=5.0, patience=60.0) as world:
        world.line.cut = True
        await world.bus.publish(world.build())
        async with asyncio.timeout(QUIET):
            progress = [await world.reports.get() for _ in range(3)]
        assert {(one.outcome, one.build, one.attempt, one.root) for one in progress} == {
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
            while (said := await world.reports.get()).outcome == "progress":
                pass
        assert said.outcome == "built"
        assert of_node(world) == [
            f"PATCH /v1/nodes/{said.root}",
            f"PUT /v1/nodes/{said.root}/states/provision",
        ]
        assert await world.silence()


@in_virtual_time
async def test_nobody_is_told_of_progress_for_ever() -> None:
    async with metal_world(progress_every=5.0, patience=60.0) as world:
        world.line.cut = True
        await world.bus.publish(world.build())
        said: list[AgentReported] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000.0):
                while True:
                    said.append(await world.reports.get())
        assert 5 <= len(said) <= 13


@in_virtual_time
async def test_a_heart_beats_while_ironic_is_there_and_counts_what_is_being_built() -> None:
    async with metal_world(SLOW, period=5.0) as world:
        assert (await world.beats.get()).hosts == ()
        await world.bus.publish(world.build())
        async with asyncio.timeout(30.0):
            while not (beat := await world.beats.get()).hosts:
                pass
        assert [(one.root, one.host, one.building) for one in beat.hosts] == [
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
async def test_when_the_clock_jumps_its_heart_is_heard_and_its_patience_is_the_same(jump: float) -> None:
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
            while (again := await world.beats.get()).run == before.run:
                pass


@in_virtual_time
async def test_news_of_a_node_is_acted_on_at_once_and_its_absence_does_no_harm() -> None:
    heard = []

    async def news(hear: object) -> None:
        heard.append(hear)
        await asyncio.Event().wait()

    async with metal_world(SimPlan(step_time=Durations("constant", (100.0,))), news=news) as world:
        began = world.clock.now()
        await world.bus.publish(world.build())
        await world.until(lambda: world.state() == ("active", US))
        heard[0](world.nodes[0].uuid)  # type: ignore[operator]
        assert await world.next_report() == ("built", "")
        assert world.clock.now() - began < 100.1
        await world.bus.publish(world.build(node=1, build=2))
        assert await world.next_report() == ("built", "")


@pytest.mark.parametrize(
    ("interface", "image", "needs"),
    [
        ("direct", None, "an image to write (image_source)"),
        ("direct", Image(name="rescue", properties={"boot_iso": "http://images/r.iso"}), "an image to write"),
        ("ramdisk", None, "an image to boot (boot_iso, or kernel and ramdisk, or image_source)"),
        ("direct", Image(name="debian"), ""),
        ("ramdisk", Image(name="net", properties={"kernel": "file:///k", "ramdisk": "file:///r"}), ""),
        ("fake", None, ""),
    ],
)
@in_virtual_time
async def test_where_an_image_is_needed_and_none_is_named_the_build_ends_before_anything_is_done(
    interface: str, image: Image | None, needs: str
) -> None:
    async with metal_world() as world:
        world.ironic.conductor.change(world.nodes[0], deploy_interface=interface)
        (said,) = await world.order(replace(world.build(), spec=replace(SPEC, image=image)))
        if needs:
            assert said[0] == "failed" and needs in said[1] and interface in said[1]
            assert not world.retry, "the next node would need one as well"
            assert (of_node(world), world.state()) == ([], ("available", None))
        else:
            assert said == ("built", "")


@pytest.mark.parametrize("comes_out", [False, True])
@in_virtual_time
async def test_a_node_that_goes_into_maintenance_before_it_is_deployed_is_not_waited_for_without_end(
    comes_out: bool,
) -> None:
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
        assert "in maintenance for 12" in cause and cause.endswith("a fan")
        assert world.state()[1] is None


@pytest.mark.parametrize("fault", [None, "deploy"])
def test_killed_at_any_moment_it_goes_on_from_what_ironic_says(fault: str | None) -> None:
    """Before and after each of its calls: what Ironic was told counts, what the agent knew does not."""

    @in_virtual_time
    async def once(kill_at: int) -> None:
        async with metal_world(nodes=1) as world:
            if fault is not None:
                world.ironic.conductor.plan_fault(world.nodes[0], "deploy", "step")
            world.line.moments, world.line.kill_at = 0, kill_at
            (said,) = await world.order(world.build())
            if fault is None:
                assert (said, world.state()) == (("built", ""), ("active", US))
            else:
                assert said[0] == "failed" and "the image could not be written" in said[1]
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
async def test_a_deploy_in_hand_when_the_agent_is_killed_is_ended_by_the_destroy_it_finds(
    seconds: float,
) -> None:
    """Whichever of the two the next agent hears first, and however far Ironic has come."""
    async with metal_world(CALLS_BACK) as world:
        await world.bus.publish(world.build())
        await asyncio.sleep(seconds)
        await world.kill()
        await world.bus.publish(world.destroy())
        world.start()
        if (said := await world.next_report()) == ("built", ""):
            said = await world.next_report()
        assert said == ("destroyed", "")
        await world.until(lambda: world.state() == ("available", None))
        await world.kill()
        world.start()
        assert await world.order(world.build()) == [("failed", UNDONE)]
        assert (world.state(), world.waiting()) == (("available", None), 0)
