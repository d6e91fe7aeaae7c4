"""The settings of maintenance."""

import math

from msgspec import field

from bus.feature import Refuse, SettingsGroup


class MaintenanceSettings(SettingsGroup, frozen=True, kw_only=True):
    """Maintenance windows, and the automatic evacuation of dead hosts (features/maintenance/README.md)."""

    # least seconds between the first drain of a maintenance window and the begin of the window
    lead: float = field(default=600.0, name="maintenance_lead")
    windows: int = field(default=1_000, name="max_windows")  # maintenance windows that are not over
    # command that switches a host off before its evacuation; the host's name is its last argument, and exit
    # code 0 means that the host is off; empty, without a quorum: no host is evacuated automatically
    hook: tuple[str, ...] = field(default=(), name="evacuation_hook")
    # number of agents of other hosts that must not reach a host before its evacuation, instead of a hook;
    # agents probe hosts as set by probe_port or probe_command; 0: agents are not asked
    quorum: int = field(default=0, name="evacuation_quorum")
    # time limit of the hook, or time for which the agents must not reach the host
    fence_seconds: float = field(default=60.0, name="evacuation_fence_seconds")
    # seconds without a heartbeat after which a host is a candidate for its evacuation
    after: float = field(default=300.0, name="evacuation_after")
    # if more hosts of a rack, cell or availability zone, or twice as many hosts of the whole cloud, are lost
    # or evacuated within ten minutes, none is evacuated
    most: int = field(default=2, name="evacuation_most")
    level: str = field(default="rack", name="evacuation_level")  # level of labels by which racks are counted

    def check(self, refuse: Refuse) -> None:
        for name, value, least in (
            ("maintenance_lead", self.lead, 0),
            ("evacuation_after", self.after, 10),
            ("evacuation_most", self.most, 0),
            ("evacuation_quorum", self.quorum, 0),
            ("max_windows", self.windows, 0),
        ):
            if not value >= least:
                refuse(name, f"must be at least {least}")
        if not math.isfinite(self.fence_seconds):
            refuse("evacuation_fence_seconds", "must be a finite number of seconds")
        if self.fence_seconds <= 0:
            refuse("evacuation_fence_seconds", "must be more than 0 seconds")
        if self.quorum == 1:
            refuse("evacuation_quorum", "must be 0, or at least 2")
        if self.quorum and self.hook:
            refuse("evacuation_quorum", "cannot be used together with evacuation_hook")
