"""The settings of waiting."""

from msgspec import field

from bus.feature import Refuse, SettingsGroup

HELD_SHARE = 0.1  # share of all hosts that schedulers hold at most for the waiting requests of one project


class WaitingSettings(SettingsGroup, frozen=True, kw_only=True):
    """Requests that wait for capacity (features/waiting/README.md)."""

    # share of all hosts that are held at most for the waiting requests of one project, at least one host
    hosts_share: float = field(default=HELD_SHARE, name="waiting_hosts_share")

    # seconds of waiting without an expected start, after which a request is listed as a problem
    starving: float = field(default=600.0, name="waiting_starving")

    def check(self, refuse: Refuse) -> None:
        if not 0 <= self.hosts_share <= 1:
            refuse("waiting_hosts_share", "is a share between 0 and 1")
        if self.starving < 0:
            refuse("waiting_starving", "is a number of seconds from 0")
