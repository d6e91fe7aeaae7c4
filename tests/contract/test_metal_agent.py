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
from tests.yard import QUIET, SPEC, Yard, story, yard

US, THEM = an_id(1), an_id(2)
SLOW = SimPlan(step_time=Durations("constant", (60.0,)))
CALLS_BACK = SimPlan(step_time=Durations("constant", (60.0,)), call_back=True)


def of_node(y: Yard) -> list[str]:
    """What the agent asked about the first node, in order, without the reads."""
    return [call for call in y.line.calls if not call.startswith("GET")]


@story
async def test_a_build_ends_active_and_its_destroy_ends_with_a_free_node() -> None:
    async with yard() as y:
        assert await y.order(y.build()) == [("built", "")]
        assert y.state() == ("active", US)
        assert await y.order(y.destroy()) == [("destroyed", "")]
        await y.until(lambda: y.state() == ("available", None))
        assert y.waiting() == 0


@story
async def test_the_destroy_is_done_when_the_node_is_out_of_our_hands_and_cleaning() -> None:
    async with yard(SLOW) as y:
        await y.order(y.build())
        assert await y.order(y.destroy()) == [("destroyed", "")]
        assert y.state() == ("cleaning", None)


@story
async def test_an_order_that_comes_twice_is_built_once() -> None:
    async with yard(SLOW) as y:
        await y.bus.publish(y.build(), y.build())
        assert await y.next_report() == ("built", "")
        assert await y.silence()
        assert await y.order(y.build()) == [("built", "")]
        assert sum(call.endswith("/states/provision") for call in y.line.calls) == 1
        assert y.waiting() == 0


@story
async def test_an_order_that_is_said_again_and_again_makes_no_more_work() -> None:
    """As the conductor does while it hears nothing for long: whoever was handed it last goes on alone."""
    reads = {}
    for times in (1, 20):
        async with yard(SimPlan(step_time=Durations("constant", (200.0,)))) as y:
            for _ in range(times):
                await y.bus.publish(y.build())
            assert await y.next_report() == ("built", "")
            reads[times] = sum(call.startswith("GET") for call in y.line.calls)
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
@story
async def test_a_build_that_finds_its_node_taken_is_tried_elsewhere(
    field: str, value: object, cause: str
) -> None:
    async with yard() as y:
        y.ironic.conductor.change(y.nodes[0], **{field: value})
        assert await y.order(y.build()) == [("failed", cause)]
        assert of_node(y) == []
        assert await y.order(y.build(node=1, attempt=2)) == [("built", "")]


@story
async def test_a_node_that_is_no_more() -> None:
    async with yard() as y:
        y.ironic.conductor.remove(y.nodes[0])
        assert await y.order(y.build(), y.destroy()) == [
            ("failed", "Ironic has no such node"),
            ("destroyed", ""),
        ]


@pytest.mark.parametrize(
    ("method", "status"), [("PUT", 500), ("PUT", 400), ("PUT", 403), ("PATCH", 400), ("PATCH", 403)]
)
@story
async def test_what_ironic_will_not_do_is_tried_elsewhere(method: str, status: int) -> None:
    """And nothing is left behind: not even our name."""
    async with yard() as y:
        y.line.refused = {method: status}
        assert await y.order(y.build()) == [("failed", f"Ironic refused ({status}): not here")]
        assert y.state() == ("available", None)


@story
async def test_where_we_may_not_write_what_we_remember_we_do_without() -> None:
    async with yard(SLOW) as y:
        y.line.refused = {"PATCH": 403}
        assert await y.order(y.destroy()) == [("destroyed", "")]
        y.line.refused = {}
        y.ironic.conductor.plan_fault(y.nodes[0], "deploy", "step")
        await y.bus.publish(y.build(attempt=2))
        await y.until(lambda: y.state() == ("deploying", US))
        y.line.refused = {"PATCH": 403}
        outcome, cause = await y.next_report()
        assert (outcome, "the image could not be written" in cause) == ("failed", True)
        assert y.state()[1] is None


@story
async def test_a_deploy_that_fails_is_undone_before_it_is_told() -> None:
    async with yard() as y:
        y.ironic.conductor.plan_fault(y.nodes[0], "deploy", "step")
        (said,) = await y.order(y.build())
        assert said == (
            "failed",
            "the node is deploy failed: Deploy step deploy.deploy failed: the image could not be written",
        )
        assert y.state()[1] is None, "the next attempt may take the instance elsewhere at once"
        assert await y.order(y.build(node=1, attempt=2)) == [("built", "")]
        await y.until(lambda: y.state() == ("available", None))


@story
async def test_a_tear_down_that_fails_is_tried_again_until_it_is_done() -> None:
    async with yard() as y:
        await y.order(y.build())
        y.ironic.conductor.plan_fault(y.nodes[0], "delete", "step")
        assert await y.order(y.destroy()) == [("destroyed", "")]
        await y.until(lambda: y.state() == ("available", None))


@story
async def test_a_tear_down_that_fails_for_ever_is_not_tried_for_ever_as_fast_as_can_be() -> None:
    async with yard(SimPlan(fail=1.0)) as y:
        seen = {SEEN: [{"build": US, "attempt": 1}]}
        y.ironic.conductor.change(y.nodes[0], provision_state="active", instance_uuid=US, extra=seen)
        await y.bus.publish(y.destroy())
        await asyncio.sleep(QUIET)
        assert 5 < sum(call.endswith("/states/provision") for call in y.line.calls) < 50


@story
async def test_a_protected_instance_is_destroyed_once_it_no_longer_is() -> None:
    async with yard() as y:
        await y.order(y.build())
        y.ironic.conductor.change(y.nodes[0], protected=True)
        await y.bus.publish(y.destroy())
        await asyncio.sleep(60.0)
        assert y.state() == ("active", US)
        y.ironic.conductor.change(y.nodes[0], protected=False)
        assert await y.next_report() == ("destroyed", "")


@pytest.mark.parametrize("state", ["deploying", "wait call-back", "deploy hold"])
@story
async def test_a_destroy_ends_a_deploy_wherever_it_is(state: str) -> None:
    async with yard(CALLS_BACK) as y:
        await y.bus.publish(y.build())
        await y.until(lambda: y.state() == ("wait call-back" if state == "deploy hold" else state, US))
        y.ironic.conductor.change(y.nodes[0], provision_state=state)
        assert await y.order(y.destroy()) == [("destroyed", "")]
        assert y.state()[1] is None
        assert await y.silence(), "of the build nothing is heard any more"
        assert y.state() == ("available", None)
        assert y.waiting() == 0
        assert await y.order(y.build()) == [("destroyed", "")]


@story
async def test_a_destroy_of_what_never_was_built_closes_the_node_to_the_order_that_comes_late() -> None:
    async with yard() as y:
        assert await y.order(y.destroy()) == [("destroyed", "")]
        await y.kill()
        y.start()
        assert await y.order(y.build()) == [("failed", UNDONE)]
        assert y.state() == ("available", None)
        assert await y.order(y.build(attempt=2)) == [("built", "")]


@story
async def test_a_destroy_touches_nothing_of_others() -> None:
    async with yard() as y:
        await y.order(y.build(build=2))
        calls = of_node(y)
        assert await y.order(y.destroy()) == [("destroyed", "")]
        assert of_node(y) == calls
        assert y.state() == ("active", THEM)


@story
async def test_the_next_attempt_waits_until_the_last_has_let_go() -> None:
    """Ironic lets an instance be on one node only."""
    async with yard(SLOW) as y:
        await y.order(y.build())
        await y.bus.publish(y.build(node=1, attempt=2), y.destroy())
        assert [await y.next_report(), await y.next_report()] == [("destroyed", ""), ("built", "")]
        assert (y.state(0)[1], y.state(1)) == (None, ("active", US))


@story
async def test_an_order_that_was_overtaken_by_the_next_attempt_elsewhere_is_void() -> None:
    async with yard() as y:
        await y.order(y.build(node=1, attempt=2))
        assert await y.order(y.build(node=0, attempt=1)) == [("destroyed", "")]
        assert (y.state(0), y.state(1)) == (("available", None), ("active", US))


@story
async def test_a_node_that_is_locked_for_a_while_is_waited_for() -> None:
    async with yard() as y:
        y.ironic.conductor.change(y.nodes[0], reservation="another conductor")
        await y.bus.publish(y.build())
        await asyncio.sleep(20.0)
        y.ironic.conductor.unlock(y.nodes[0])
        assert await y.next_report() == ("built", "")


@story
async def test_while_ironic_is_away_orders_wait_and_the_conductor_is_told_that_they_do() -> None:
    async with yard(progress_every=5.0, patience=60.0) as y:
        y.line.cut = True
        await y.bus.publish(y.build())
        async with asyncio.timeout(QUIET):
            progress = [await y.reports.get() for _ in range(3)]
        assert {(one.outcome, one.build, one.attempt, one.root) for one in progress} == {
            ("progress", US, 1, y.nodes[0].uuid)
        }
        y.line.cut = False
        assert await y.next_report() == ("built", "")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(QUIET):
                await y.reports.get()


@story
async def test_a_deploy_may_take_longer_than_rabbitmq_lets_an_order_be_held() -> None:
    async with yard(SimPlan(step_time=Durations("constant", (4000.0,)))) as y:
        await y.bus.publish(y.build())
        async with asyncio.timeout(5000.0):
            while (said := await y.reports.get()).outcome == "progress":
                pass
        assert said.outcome == "built"
        assert of_node(y) == [f"PATCH /v1/nodes/{said.root}", f"PUT /v1/nodes/{said.root}/states/provision"]
        assert await y.silence()


@story
async def test_nobody_is_told_of_progress_for_ever() -> None:
    async with yard(progress_every=5.0, patience=60.0) as y:
        y.line.cut = True
        await y.bus.publish(y.build())
        said: list[AgentReported] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000.0):
                while True:
                    said.append(await y.reports.get())
        assert 5 <= len(said) <= 13


@story
async def test_a_heart_beats_while_ironic_is_there_and_counts_what_is_being_built() -> None:
    async with yard(SLOW, period=5.0) as y:
        assert (await y.beats.get()).hosts == ()
        await y.bus.publish(y.build())
        async with asyncio.timeout(30.0):
            while not (beat := await y.beats.get()).hosts:
                pass
        assert [(one.root, one.host, one.building) for one in beat.hosts] == [
            (y.nodes[0].uuid, y.nodes[0].uuid, 1)
        ]
        assert await y.next_report() == ("built", "")
        async with asyncio.timeout(30.0):
            while (beat := await y.beats.get()).hosts[0].building:
                pass
        y.line.cut = True
        await asyncio.sleep(30.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(QUIET):
                for _ in range(10):
                    await y.beats.get()


@story
async def test_news_of_a_node_is_acted_on_at_once_and_its_absence_does_no_harm() -> None:
    heard = []

    async def news(hear: object) -> None:
        heard.append(hear)
        await asyncio.Event().wait()

    async with yard(SimPlan(step_time=Durations("constant", (100.0,))), news=news) as y:
        began = y.clock.now()
        await y.bus.publish(y.build())
        await y.until(lambda: y.state() == ("active", US))
        heard[0](y.nodes[0].uuid)  # type: ignore[operator]
        assert await y.next_report() == ("built", "")
        assert y.clock.now() - began < 100.1
        await y.bus.publish(y.build(node=1, build=2))
        assert await y.next_report() == ("built", "")


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
@story
async def test_where_an_image_is_needed_and_none_is_named_the_build_ends_before_anything_is_done(
    interface: str, image: Image | None, needs: str
) -> None:
    async with yard() as y:
        y.ironic.conductor.change(y.nodes[0], deploy_interface=interface)
        (said,) = await y.order(replace(y.build(), spec=replace(SPEC, image=image)))
        if needs:
            assert said[0] == "failed" and needs in said[1] and interface in said[1]
            assert not y.retry, "the next node would need one as well"
            assert (of_node(y), y.state()) == ([], ("available", None))
        else:
            assert said == ("built", "")


@pytest.mark.parametrize("comes_out", [False, True])
@story
async def test_a_node_that_goes_into_maintenance_before_it_is_deployed_is_not_waited_for_without_end(
    comes_out: bool,
) -> None:
    plan = SimPlan(step_time=Durations("constant", (400.0,)), call_back=True)
    async with yard(plan, maintenance_patience=120.0) as y:
        await y.bus.publish(y.build())
        await y.until(lambda: y.state()[0] == "wait call-back", 1000.0)
        y.ironic.conductor.change(y.nodes[0], maintenance=True, maintenance_reason="a fan")
        if comes_out:
            await asyncio.sleep(100.0)
            y.ironic.conductor.change(y.nodes[0], maintenance=False)
            assert await y.next_report(2000.0) == ("built", "")
            return
        began = y.clock.monotonic()
        await y.until(lambda: y.state()[0] == "deleting")
        assert 120.0 <= y.clock.monotonic() - began < 150.0
        outcome, cause = await y.next_report(1000.0)
        assert (outcome, y.retry) == ("failed", True)
        assert "in maintenance for 12" in cause and cause.endswith("a fan")
        assert y.state()[1] is None


@pytest.mark.parametrize("fault", [None, "deploy"])
def test_killed_at_any_moment_it_goes_on_from_what_ironic_says(fault: str | None) -> None:
    """Before and after each of its calls: what Ironic was told counts, what the agent knew does not."""

    @story
    async def once(kill_at: int) -> None:
        async with yard(nodes=1) as y:
            if fault is not None:
                y.ironic.conductor.plan_fault(y.nodes[0], "deploy", "step")
            y.line.moments, y.line.kill_at = 0, kill_at
            (said,) = await y.order(y.build())
            if fault is None:
                assert (said, y.state()) == (("built", ""), ("active", US))
            else:
                assert said[0] == "failed" and "the image could not be written" in said[1]
                assert y.state()[1] is None
            assert await y.order(y.destroy()) == [("destroyed", "")]
            await y.until(lambda: y.state() == ("available", None))
            assert [one["build"] for one in y.nodes[0].extra[SEEN]] == [US]
            assert y.waiting() == 0
            moments.append(y.line.moments)

    moments: list[int] = []
    once(0)
    for moment in range(1, moments[0] + 1):
        once(moment)
    assert moments[0] > 12


@pytest.mark.parametrize("seconds", [0.0, 1.0, 10.0, 30.0, 31.0, 59.0, 61.0])
@story
async def test_a_deploy_in_hand_when_the_agent_is_killed_is_ended_by_the_destroy_it_finds(
    seconds: float,
) -> None:
    """Whichever of the two the next agent hears first, and however far Ironic has come."""
    async with yard(CALLS_BACK) as y:
        await y.bus.publish(y.build())
        await asyncio.sleep(seconds)
        await y.kill()
        await y.bus.publish(y.destroy())
        y.start()
        if (said := await y.next_report()) == ("built", ""):
            said = await y.next_report()
        assert said == ("destroyed", "")
        await y.until(lambda: y.state() == ("available", None))
        await y.kill()
        y.start()
        assert await y.order(y.build()) == [("failed", UNDONE)]
        assert (y.state(), y.waiting()) == (("available", None), 0)
