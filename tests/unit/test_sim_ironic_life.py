"""The notifications of a simulated node equal those recorded from a real Ironic, step by step."""

from typing import Any

import pytest

from compute_sim.core.faults import Durations
from compute_sim.ironic.conductor import SimPlan
from tests.support.simulated_ironic import INSTANCE, OTHER, play

# Each as it was recorded from an Ironic 39.
RECORDED: dict[str, tuple[str, dict[str, Any], str]] = {
    "manage": ("provision manage", {"provision_state": "enroll", "power_state": None}, """
        provision_set.start: verifying > manageable, None
        provision_set.end: manageable, power off
        power_state_corrected.success: manageable, power off
    """),
    "maintenance": ("maintenance on\nmaintenance off", {}, """
        maintenance_set.start: available, power off, maintenance
        maintenance_set.end: available, power off, maintenance
        maintenance_set.start: available, power off
        maintenance_set.end: available, power off
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
    "deploy and undeploy": ("claim\nprovision active\nprovision deleted", {}, """
        update.start: available, power off, instance
        update.end: available, power off, instance
        provision_set.start: deploying > active, power off, instance
        provision_set.end: active, power off, instance
        provision_set.start: deleting > available, power off, instance
        provision_set.success: cleaning > available, power off
        provision_set.end: available, power off
    """),
    "a clean step fails": (
        "fail clean\nprovision provide\nprovision manage\nmaintenance off",
        {"provision_state": "manageable"}, """
        provision_set.start: cleaning > available, power off
        provision_set.error: clean failed > available, power off, maintenance
        provision_set.success: manageable, power off, maintenance
        maintenance_set.start: manageable, power off
        maintenance_set.end: manageable, power off
    """),
    "a deploy fails and is taken back": (
        "claim\nfail deploy\nprovision active\nprovision deleted", {}, """
        update.start: available, power off, instance
        update.end: available, power off, instance
        provision_set.start: deploying > active, power off, instance
        provision_set.error: deploy failed > active, power off, instance
        provision_set.start: deleting > available, power off, instance
        provision_set.success: cleaning > available, power off
        provision_set.end: available, power off
    """),
    "a tear-down fails, which still shows the instance": (
        "fail tear_down\nprovision deleted\nfail\nprovision deleted",
        {"provision_state": "active", "instance_uuid": INSTANCE}, """
        provision_set.start: deleting > available, power off, instance
        provision_set.error: error, power off, instance
        provision_set.start: deleting > available, power off
        provision_set.success: cleaning > available, power off
        provision_set.end: available, power off
    """),
    "a power action fails": ("fail power\npower power on", {}, """
        power_set.start: available, power off
        power_set.error: available, power off
    """),
    "a new class for an active node": ("set resource_class other", {"provision_state": "active"}, """
        update.start: active, power off
        update.error: active, power off
        refused: 409
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
}  # fmt: skip


@pytest.mark.parametrize("story", CALLED_BACK)
def test_operations_wait_for_the_call_of_the_node(story: str) -> None:
    acts, state, sent = CALLED_BACK[story]
    assert play(acts, plan=WAITING, provision_state=state).sent == lines(sent)


@pytest.mark.parametrize(
    ("acts", "fields", "status"),
    [
        ("provision deleted", {"provision_state": "active", "protected": True}, 403),
        ("provision active", {"maintenance": True}, 400),
        ("provision provide", {}, 400),
        ("provision nonsense", {}, 400),
        ("provision provide", {"provision_state": "deploying", "reservation": "localhost"}, 409),
        ("maintenance on", {"reservation": "localhost"}, 409),
        ("power up", {}, 400),
        ("power power on", {"provision_state": "cleaning"}, 400),
        ("set extra text", {}, 400),
        ("set driver null", {}, 400),
        ("set fault null", {}, 400),
        ("set name a b", {}, 400),
        ("claim nonsense", {}, 400),
    ],
)  # fmt: skip
def test_a_refused_request_changes_nothing(acts: str, fields: dict[str, Any], status: int) -> None:
    played = play(acts, idle=3.0, **fields)
    assert played.sent[-1] == f"refused: {status}"
    assert {name: getattr(played.node, name) for name in fields} == fields
    assert played.node.updated_at is None


def test_failures_and_times_are_the_same_for_the_same_seed() -> None:
    def fates(seed: int) -> list[tuple[float, bool]]:
        plan = SimPlan(seed=seed, fail=0.3, step_time=Durations.parse("exponential:2"))
        return [(plan.seconds("node", number), plan.fails("node", number)) for number in range(200)]

    assert fates(1) == fates(1)
    assert fates(1) != fates(2)
    assert sum(fails for _, fails in fates(1)) == pytest.approx(60, abs=20)
