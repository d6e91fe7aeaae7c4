"""The notifications of a simulated node equal those recorded from a real Ironic, step by step."""

from typing import Any

import pytest

from compute_sim.core.faults import Durations
from compute_sim.ironic.conductor import SimPlan
from tests.support.simulated_ironic import INSTANCE, OTHER, play

# Each as it was recorded from an Ironic 39, but for the second events it lost itself (marked *).
RECORDED: dict[str, tuple[str, dict[str, Any], str]] = {
    "manage": ("provision manage", {"provision_state": "enroll", "power_state": None}, """
        provision_set.start: verifying > manageable, None
        provision_set.end: manageable, power off
        power_state_corrected.success: manageable, power off
    """),
    "inspect*": ("provision inspect", {"provision_state": "manageable"}, """
        provision_set.start: inspecting > manageable, power off
        provision_set.end: manageable, power off
    """),
    "maintenance": ("maintenance on\nmaintenance off", {}, """
        maintenance_set.start: available, power off, maintenance
        maintenance_set.end: available, power off, maintenance
        maintenance_set.start: available, power off
        maintenance_set.end: available, power off
    """),
    "maintenance by patch": ("set maintenance true\nset maintenance false", {}, """
        update.start: available, power off, maintenance
        update.end: available, power off, maintenance
        update.start: available, power off
        update.end: available, power off
    """),
    "power": ("power power on\npower rebooting\npower soft power off", {}, """
        power_set.start: available, power off
        power_set.end: available, power on
        power_set.start: available, power on
        power_set.end: available, power on
        power_set.start: available, power on
        power_set.end: available, power off
    """),
    "a second claim is refused, and its events show what was asked for": (f"claim\nclaim {OTHER}", {}, """
        update.start: available, power off, instance
        update.end: available, power off, instance
        update.start: available, power off, instance
        update.error: available, power off, instance
        refused: 409
    """),
    "retiring an available node is refused": ("set retired true", {}, """
        update.start: available, power off
        update.error: available, power off
        refused: 409
    """),
    "deploy and undeploy": ("claim\nprovision active\nprovision deleted", {}, """
        update.start: available, power off, instance
        update.end: available, power off, instance
        provision_set.start: deploying > active, power off, instance
        provision_set.end: active, power off, instance
        provision_set.start: deleting > available, power off, instance
        provision_set.success: cleaning > available, power off
        provision_set.end: available, power off
    """),
    "rescue and unrescue*": ("provision rescue\nprovision unrescue",
        {"provision_state": "active", "instance_uuid": INSTANCE}, """
        provision_set.start: rescuing > rescue, power off, instance
        provision_set.end: rescue, power off, instance
        provision_set.start: unrescuing > active, power off, instance
        provision_set.end: active, power off, instance
    """),
    "rebuild": ("provision rebuild", {"provision_state": "active", "instance_uuid": INSTANCE}, """
        provision_set.start: deploying > active, power off, instance
        provision_set.end: active, power off, instance
    """),
    "undeploy of a retired node": ("set retired true\nprovision deleted",
        {"provision_state": "active", "instance_uuid": INSTANCE}, """
        update.start: active, power off, instance
        update.end: active, power off, instance
        provision_set.start: deleting > available, power off, instance
        provision_set.success: cleaning > available, power off
        provision_set.end: manageable, power off
    """),
    "a clean step fails": (
        "fault clean step\nprovision provide\nprovision manage\nmaintenance off",
        {"provision_state": "manageable"}, """
        provision_set.start: cleaning > available, power off
        provision_set.error: clean failed > available, power off, maintenance
        provision_set.success: manageable, power off, maintenance
        maintenance_set.start: manageable, power off
        maintenance_set.end: manageable, power off
    """),
    "cleaning cannot be prepared": ("fault clean prepare\nprovision provide",
        {"provision_state": "manageable"}, """
        provision_set.start: cleaning > available, power off
        provision_set.error: clean failed > available, power off
    """),
    "a clean that was asked for": ("provision clean", {"provision_state": "manageable"}, """
        provision_set.start: cleaning > manageable, power off
        provision_set.end: manageable, power off
    """),
    "no automated cleaning": ("provision manage\nprovision provide", {"automated_clean": False}, """
        provision_set.success: manageable, power off
        provision_set.start: cleaning > available, power off
        provision_set.end: available, power off
    """),
    "a deploy fails and is taken back": (
        "claim\nfault deploy step\nprovision active\nprovision deleted", {}, """
        update.start: available, power off, instance
        update.end: available, power off, instance
        provision_set.start: deploying > active, power off, instance
        provision_set.error: deploy failed > active, power off, instance
        provision_set.start: deleting > available, power off, instance
        provision_set.success: cleaning > available, power off
        provision_set.end: available, power off
    """),
    "a tear-down fails, which still shows the instance": (
        "fault delete step\nprovision deleted\nprovision deleted",
        {"provision_state": "active", "instance_uuid": INSTANCE}, """
        provision_set.start: deleting > available, power off, instance
        provision_set.error: error, power off, instance
        provision_set.start: deleting > available, power off
        provision_set.success: cleaning > available, power off
        provision_set.end: available, power off
    """),
    "service": ("provision service", {"provision_state": "active", "instance_uuid": INSTANCE}, """
        provision_set.start: servicing > active, power off, instance
        provision_set.end: active, power off, instance
    """),
    "a rescue fails*": ("fault rescue step\nprovision rescue\nprovision unrescue",
        {"provision_state": "active", "instance_uuid": INSTANCE}, """
        provision_set.start: rescuing > rescue, power off, instance
        provision_set.error: rescue failed > rescue, power off, instance
        provision_set.start: unrescuing > active, power off, instance
        provision_set.end: active, power off, instance
    """),
    "an inspection fails": ("fault inspect step\nprovision inspect\nprovision manage\nprovision adopt",
        {"provision_state": "manageable"}, """
        provision_set.start: inspecting > manageable, power off
        provision_set.error: inspect failed > manageable, power off
        provision_set.success: manageable, power off
        provision_set.start: adopting > active, power off
        provision_set.end: active, power off
    """),
    "a power action fails": ("fault power step\npower power on", {}, """
        power_set.start: available, power off
        power_set.error: available, power off
    """),
    "delete": ("delete", {}, """
        delete.start: available, power off
        delete.end: available, power off
    """),
    "an active node is not deleted": ("delete", {"provision_state": "active"}, """
        delete.start: active, power off
        delete.error: active, power off
        refused: 409
    """),
    "a new class for an active node": ("set resource_class other", {"provision_state": "active"}, """
        update.start: active, power off
        update.error: active, power off
        refused: 409
    """),
    "a node in maintenance is deleted wherever it is": ("delete",
        {"provision_state": "clean failed", "target_provision_state": "available", "maintenance": True}, """
        delete.start: clean failed > available, power off, maintenance
        delete.end: clean failed > available, power off, maintenance
    """),
}  # fmt: skip


def lines(text: str) -> list[str]:
    return [words.strip() for words in text.strip().splitlines()]


@pytest.mark.parametrize("story", RECORDED)
def test_simulated_notifications_equal_recorded_ones(story: str) -> None:
    acts, fields, sent = RECORDED[story]
    assert play(acts, **fields).sent == lines(sent)


WAITING = SimPlan(step_time=Durations("constant", (10.0,)), call_back=True)
CALLED_BACK: dict[str, tuple[str, str, str]] = {
    "deploy": ("provision active\nwait 20", "available", """
        provision_set.start: deploying > active, power off
        provision_set.success: wait call-back > active, power off
        provision_set.success: deploying > active, power off
        provision_set.end: active, power off
    """),
    "deploy, undeployed while it waits": (
        "provision active\nwait 5\nprovision deleted\nwait 30", "available", """
        provision_set.start: deploying > active, power off
        provision_set.success: wait call-back > active, power off
        provision_set.success: deleting > available, power off
        provision_set.success: cleaning > available, power off
        provision_set.success: clean wait > available, power off
        provision_set.success: cleaning > available, power off
        provision_set.end: available, power off
    """),
    "clean aborted": ("provision provide\nwait 5\nprovision abort\nwait 30", "manageable", """
        provision_set.start: cleaning > available, power off
        provision_set.success: clean wait > available, power off
        provision_set.end: clean failed > available, power off
    """),
    "inspect aborted": ("provision inspect\nwait 5\nprovision abort\nwait 30", "manageable", """
        provision_set.start: inspecting > manageable, power off
        provision_set.success: inspect wait > manageable, power off
        provision_set.end: inspect failed > manageable, power off
    """),
    "service aborted": ("provision service\nwait 5\nprovision abort\nwait 30", "active", """
        provision_set.start: servicing > active, power off
        provision_set.success: service wait > active, power off
        provision_set.error: service failed > active, power off
        provision_set.success: active, power off
    """),
}  # fmt: skip


@pytest.mark.parametrize("story", CALLED_BACK)
def test_steps_wait_for_the_call_of_the_node(story: str) -> None:
    acts, state, sent = CALLED_BACK[story]
    assert play(acts, plan=WAITING, provision_state=state).sent == lines(sent)


SYNCED = SimPlan(sync_every=10.0, sync_retries=1)
POWER: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "a manual power change is corrected": ("bmc power on\nwait 60", {}, """
        power_set.start: available, power off
        power_set.end: available, power off
    """, {}),
    "a BMC that stays on takes the node into maintenance, which ends without a notification": (
        "bmc stuck on\nwait 25\nbmc well\nwait 30", {}, """
        power_set.start: available, power off
        power_set.end: available, power off
        power_state_corrected.success: available, power on, maintenance
    """, {"maintenance": False, "fault": None, "power_state": "power on"}),
    "an unreachable BMC closes the node": ("bmc unreachable\nwait 25", {}, """
        power_state_corrected.success: available, None, maintenance
    """, {"fault": "power failure"}),
    "until it is back": ("bmc error\nwait 25\nbmc well\nwait 20", {}, """
        power_state_corrected.success: available, error, maintenance
        power_state_corrected.success: available, power off
    """, {"maintenance": False}),
    "power cannot be set on an unreachable BMC": ("bmc unreachable\nwait 25\npower power on\nwait 1", {}, """
        power_state_corrected.success: available, None, maintenance
        power_set.start: available, None, maintenance
        power_set.error: available, None, maintenance
    """, {}),
    "a node in an operator's maintenance is left alone": (
        "bmc unreachable\nwait 100", {"maintenance": True}, "", {}),
    "an unknown power state is read": ("bmc power on\nwait 15", {"power_state": None}, """
        power_state_corrected.success: available, power on
    """, {}),
}  # fmt: skip


@pytest.mark.parametrize("story", POWER)
def test_ironic_checks_power_states_periodically(story: str) -> None:
    acts, fields, sent, after = POWER[story]
    bench = play(acts, plan=SYNCED, idle=0.0, **fields)
    assert bench.sent == lines(sent)
    assert {name: getattr(bench.node, name) for name in after} == after


def test_a_hold_step_waits_for_unhold() -> None:
    bench = play("hold\nwait 100\nprovision unhold\nwait 1", provision_state="manageable")
    assert bench.sent == lines("""
        provision_set.start: cleaning > manageable, power off
        provision_set.end: clean hold > manageable, power off
        provision_set.start: clean wait > manageable, power off
        provision_set.success: cleaning > manageable, power off
        provision_set.end: manageable, power off
    """)


def test_a_clean_that_times_out_sets_maintenance_without_a_notification() -> None:
    bench = play("fault clean timeout\nprovision provide", provision_state="manageable")
    assert bench.sent[-1] == "provision_set.error: clean failed > available, power off"
    assert bench.node.maintenance
    assert bench.node.fault == "clean failure"


SLOW = SimPlan(step_time=Durations("constant", (3.0,)))


def test_requests_for_a_locked_node_wait_and_then_fail() -> None:
    acts = "provision provide\nset extra {}\nsoon maintenance on\nsoon traits CUSTOM_LOCKED\nwait 5"
    bench = play(acts, plan=SLOW, idle=0.4, provision_state="manageable")
    assert bench.sent == lines("""
        provision_set.start: cleaning > available, power off
        refused: 409
        maintenance_set.start: cleaning > available, power off, maintenance
        update.start: cleaning > available, power off
        maintenance_set.error: cleaning > available, power off, maintenance
        refused: 409
        provision_set.end: available, power off
        update.end: cleaning > available, power off
    """)
    assert bench.node.traits == ("CUSTOM_LOCKED",)
    assert not bench.node.maintenance


def test_a_notification_after_a_trait_change_can_show_an_older_state() -> None:
    acts = "provision provide\nwait 1\nsoon traits CUSTOM_Y\nwait 3"
    bench = play(acts, plan=SLOW, idle=0.25, provision_state="manageable")
    assert bench.sent[-2:] == lines("""
        provision_set.end: available, power off
        update.end: cleaning > available, power off
    """)
    assert bench.node.provision_state == "available"


@pytest.mark.parametrize(
    ("acts", "fields", "status"),
    [
        ("provision provide", {"provision_state": "manageable", "retired": True}, 400),
        ("provision deleted", {"provision_state": "active", "protected": True}, 403),
        ("provision active", {"maintenance": True}, 400),
        ("provision abort", {"provision_state": "service failed", "maintenance": True}, 409),
        ("provision rescue", {}, 400),
        ("provision nonsense", {}, 400),
        ("provision active", {"provision_state": "deploying", "reservation": "localhost"}, 409),
        ("power up", {}, 400),
        ("power power on", {"provision_state": "cleaning"}, 400),
        ("set protected true", {}, 409),
        ("set protected_reason why", {}, 400),
        ("set name null", {}, 400),
        ("set extra text", {}, 400),
        ("set resource_class " + "x" * 81, {}, 400),
        ("set uuid null", {}, 400),
        ("set fault null", {}, 400),
        ("delete", {"instance_uuid": INSTANCE}, 409),
        ("traits nonsense", {}, 400),
    ],
)  # fmt: skip
def test_a_refused_request_changes_nothing(acts: str, fields: dict[str, Any], status: int) -> None:
    bench = play(acts, **fields)
    assert bench.sent[-1] == f"refused: {status}"
    assert {name: getattr(bench.node, name) for name in fields} == fields
    assert bench.node.updated_at is None


def test_failures_and_times_are_the_same_for_the_same_seed() -> None:
    def fates(seed: int) -> list[tuple[float, object]]:
        plan = SimPlan(seed=seed, fail=0.3, step_time=Durations.parse("exponential:2"))
        return [(plan.seconds("node", number), plan.fault("node", number)) for number in range(200)]

    assert fates(1) == fates(1)
    assert fates(1) != fates(2)
    assert sum(fault is not None for _, fault in fates(1)) == pytest.approx(60, abs=20)
