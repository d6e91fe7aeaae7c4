"""The settings of maintenance windows and automatic evacuation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_worker.core.dead_hosts import EvacuationLimits


@dataclass(frozen=True)
class EvacuationOptions:
    """The settings of automatic evacuation. Without a hook, no host is evacuated."""

    hook: Sequence[str] = ()  # the command and its first arguments
    hook_seconds: float = 60.0
    limits: EvacuationLimits = field(default_factory=EvacuationLimits)
    level: str = "rack"  # level of the domains that the limits count, in addition to cells


@dataclass(frozen=True)
class MaintenanceOptions:
    lead: float = 600.0  # least seconds between the first drain of a window and the begin of the window
    evacuation: EvacuationOptions = field(default_factory=EvacuationOptions)
