"""The settings of quotas."""

from bus.feature import SettingsGroup


class QuotaSettings(SettingsGroup, frozen=True, kw_only=True, rename=lambda name: f"quota_{name}"):
    """The quotas of projects (features/quotas/README.md)."""

    # entry of clouds.yaml with a user that may read Keystone's unified limits, which are the quotas then;
    # envvars: the OS_* variables; empty: `berth project quota` sets the quotas
    cloud: str = ""
