"""The health of hosts, as a scheduler judges it by heartbeats: whether a host is up, down or unknown."""

from datetime import UTC, datetime
from typing import Literal

from bus.vocabulary import Id, Value

Availability = Literal["up", "down", "unknown"]


class HostHealth(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One host by its heartbeats. What operators have set is in the traits of its root."""

    root: Id
    host: str
    cell: str
    agent: str
    availability: Availability = "up"  # unknown: no heartbeat since the scheduler started
    since: float = 0.0  # of a host that is down: its last heartbeat; 0: no heartbeat is on record
    why: str = ""  # of a host that is down
    enabled: bool = True  # as the last heartbeat says, like the rest
    why_disabled: str = ""
    forced_down: bool = False

    @property
    def unknown(self) -> bool:
        return self.availability == "unknown"

    @property
    def recorded(self) -> bool:
        """Return whether a scheduler that starts must know of it: builds must not go there."""
        return self.availability == "down" or not self.enabled or self.forced_down


def down_sentence(health: HostHealth) -> str:
    """Return why a host is down, with the time of its last heartbeat."""
    since = (
        datetime.fromtimestamp(health.since, UTC).strftime(" since %Y-%m-%d %H:%M:%S UTC")
        if health.since
        else ""
    )
    return f"down{since}: {health.why}"
