"""Refused settings of Keystone and of single sign-on."""

from typing import Any

import pytest

from berth.kit import BadSetting
from berth.kit.testing import read

pytestmark = pytest.mark.usefixtures("no_settings_file")


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"placement_auth": "none"}, "a text of 4 characters: is noauth2, tokens or keystone"),
        ({"placement_auth": "keystone"}, "placement_cloud = '': name the entry of clouds.yaml"),
        ({"placement_auth": "keystone", "placement_cloud": "none"}, "there is no clouds.yaml"),
        ({"control_room_sso": "openid"}, "single sign-on needs placement_auth = keystone"),
        ({"control_room_sso": "openid?x"}, "takes the id of a federation protocol at Keystone"),
        ({"control_room_sso_url": "https://k"}, "name the protocol of single sign-on in control_room_sso"),
        (
            {"control_room_sso": "openid", "control_room_sso_url": "http://keystone.example.com"},
            "takes a URL with https",
        ),
        *(
            ({"control_room_sso": "openid", "control_room_sso_url": url}, "takes a URL with https")
            for url in ("keystone", "https://[", "https://k:x", "https:///v3", "javascript:alert(1)")
        ),
    ],
)
def test_invalid_settings_of_keystone_are_refused(flags: dict[str, Any], why: str) -> None:
    with pytest.raises(BadSetting) as refusal:
        read(flags, environment={})
    assert why in str(refusal.value)
