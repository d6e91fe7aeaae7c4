"""Options of `berth boot` for server groups."""

import pytest

from berth.kit import BadSetting, boot_request, options_named

WEB = "00000000-0000-4000-8000-000000000001"


def test_a_group_is_named_by_one_option_only() -> None:
    with pytest.raises(BadSetting, match="--group and --hint group= both name a group"):
        boot_request(options_named(group="web", hint=[f"group={WEB}"]))
