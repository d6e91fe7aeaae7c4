"""Settings of maintenance that cannot be used are refused, and an edit of a window is an act."""

from typing import Any

import pytest

from berth.configuration import read
from berth.settings import BadSetting
from bus.acts import act_of, describe
from features.maintenance.messages import AddWindow, MaintenanceEditRequested, MaintenanceWindow
from tests.support.ids import uid

pytestmark = pytest.mark.usefixtures("no_settings_file")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"evacuation_quorum": 1}, "must be 0, or at least 2"),
        ({"evacuation_quorum": 3, "evacuation_hook": ("x",)}, "cannot be used together with evacuation_hook"),
        ({"evacuation_after": 9.0}, "must be at least 10"),
        ({"evacuation_fence_seconds": 0.0}, "must be more than 0 seconds"),
    ],
)
def test_a_quorum_that_confirms_nothing_or_competes_with_a_hook_is_refused(
    given: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadSetting, match=says):
        read(given, environment={})


def test_an_edit_of_a_window_is_an_act_on_this_window() -> None:
    window = MaintenanceWindow(id=uid(6), roots=(uid(5),), begins=1.0, ends=2.0)
    edit = MaintenanceEditRequested(edit=AddWindow(window=window))
    act = act_of(edit)
    assert act is not None and act.name == "maintain"
    assert describe(edit).id == uid(6)
