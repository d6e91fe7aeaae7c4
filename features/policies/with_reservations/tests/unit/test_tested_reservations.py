"""Changed reservations in the test of a policy."""

import pytest

from berth.kit import BadSetting, Settings
from features.policies.policy_changes import changed_policy
from features.policies.with_reservations.tested_changes import ReservationChanges


def test_changed_reservations_are_parsed() -> None:
    changed = changed_policy(Settings(), ["reservation.x=none", "reservation.y=3xVCPU:2,CUSTOM_FAST"])
    [reserving] = changed.stored
    assert isinstance(reserving, ReservationChanges)
    assert reserving.removed == ["x"]
    [added] = reserving.added
    specs = {"resources:VCPU": "2", "trait:CUSTOM_FAST": "required"}
    assert (len(added.instances), added.flavor.name, added.flavor.extra_specs) == (3, "y", specs)


@pytest.mark.parametrize("change", ["reservation.x=VCPU", "reservation.x=2000xVCPU:1"])
def test_a_reservation_that_is_not_understood_is_refused(change: str) -> None:
    with pytest.raises(BadSetting, match=change.partition("=")[0]):
        changed_policy(Settings(), [change])
