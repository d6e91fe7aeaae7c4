"""Settings of maintenance that cannot be used are refused."""

from typing import Any

import pytest

from berth.kit import BadSetting
from berth.kit.testing import read

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
