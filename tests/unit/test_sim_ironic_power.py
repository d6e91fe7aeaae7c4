"""Power states of BMC and Ironic, as recorded from the periodic check of a real Ironic."""

import pytest

from compute_sim.ironic.conductor import SimPlan
from tests.support.simulated_ironic import play

PLAN = SimPlan(sync_every=10.0, sync_retries=1)


def told(acts: str, **fields: object) -> list[str]:
    return play(acts, plan=PLAN, idle=0.0, **fields).told


def test_a_manual_power_change_is_corrected() -> None:
    assert told("bmc power on\nwait 60") == [
        "power_set.start: available, power off",
        "power_set.end: available, power off",
    ]


def test_a_bmc_that_stays_on_takes_the_node_into_maintenance() -> None:
    bench = play("bmc stuck on\nwait 60", plan=PLAN, idle=0.0)
    assert bench.told == [
        "power_set.start: available, power off",
        "power_set.end: available, power off",
        "power_state_corrected.success: available, power on, maintenance",
    ]


def test_maintenance_after_a_power_failure_ends_without_a_notification() -> None:
    bench = play("bmc stuck on\nwait 25\nbmc well\nwait 30", plan=PLAN, idle=0.0)
    assert bench.told[-1] == "power_state_corrected.success: available, power on, maintenance"
    assert not bench.node.maintenance
    assert bench.node.fault is None
    assert bench.node.power_state == "power on"


@pytest.mark.parametrize(("says", "power"), [("unreachable", None), ("error", "error")])
def test_a_bmc_out_of_reach_closes_the_node_until_it_is_back(says: str, power: str | None) -> None:
    bench = play(f"bmc {says}\nwait 25", plan=PLAN, idle=0.0)
    assert bench.told == [f"power_state_corrected.success: available, {power}, maintenance"]
    assert bench.node.fault == "power failure"
    bench = play(f"bmc {says}\nwait 25\nbmc well\nwait 20", plan=PLAN, idle=0.0)
    assert bench.told[1:] == ["power_state_corrected.success: available, power off"]
    assert not bench.node.maintenance


def test_power_cannot_be_set_on_a_bmc_out_of_reach() -> None:
    assert told("bmc unreachable\nwait 25\npower power on\nwait 1")[1:] == [
        "power_set.start: available, None, maintenance",
        "power_set.error: available, None, maintenance",
    ]


def test_a_node_an_operator_has_in_maintenance_is_left_alone() -> None:
    assert told("bmc unreachable\nwait 100", maintenance=True) == []


def test_a_power_ironic_never_knew_is_taken_down() -> None:
    assert told("bmc power on\nwait 15", power_state=None) == [
        "power_state_corrected.success: available, power on"
    ]
