"""The settings of the feature keystone."""

from msgspec import field

from bus.feature import SettingsGroup


class KeystoneSettings(SettingsGroup, frozen=True, kw_only=True):
    """The Keystone that `placement_auth = keystone` selects (features/keystone/README.md)."""

    # entry of clouds.yaml with the user that may check tokens at Keystone; envvars: the OS_* variables
    cloud: str = field(default="", name="placement_cloud")
    # federation protocol at Keystone by which users may sign in, such as openid; empty: only with a password
    sso: str = field(default="", name="control_room_sso")
    # URL of Keystone for browsers, for single sign-on; empty: the auth_url of placement_cloud
    sso_url: str = field(default="", name="control_room_sso_url")
