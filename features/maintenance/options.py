"""The settings of maintenance windows and automatic evacuation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from features.maintenance.core.dead_hosts import EvacuationLimits
from features.maintenance.settings import MaintenanceSettings


@dataclass(frozen=True)
class QuorumOptions:
    """The settings by which agents of other hosts confirm that a host is off."""

    votes: int = 0  # number of agents that must vote that they cannot reach the host; 0: agents are not asked
    seconds: float = 60.0  # seconds for which the agents must vote so, in every round of questions


@dataclass(frozen=True)
class EvacuationOptions:
    """The settings of automatic evacuation. If neither a fencing hook nor a quorum of agents is set, no host
    is evacuated.
    """

    hook: Sequence[str] = ()  # the command that switches a host off, with its first arguments
    hook_seconds: float = 60.0
    limits: EvacuationLimits = field(default_factory=EvacuationLimits)
    quorum: QuorumOptions = field(default_factory=QuorumOptions)
    level: str = "rack"  # level of the domains for the limits, in addition to cells, zones and the cloud


@dataclass(frozen=True)
class MaintenanceOptions:
    lead: float = 600.0  # minimum number of seconds from the first drain of a window to the window's begin
    evacuation: EvacuationOptions = field(default_factory=EvacuationOptions)
    most_windows: int = 1_000  # windows that are not over


def options_of(settings: MaintenanceSettings) -> MaintenanceOptions:
    """Return the options that the settings state."""
    limits = EvacuationLimits(settings.after, most=settings.most)
    quorum = QuorumOptions(settings.quorum, settings.fence_seconds)
    evacuation = EvacuationOptions(settings.hook, settings.fence_seconds, limits, quorum, settings.level)
    return MaintenanceOptions(settings.lead, evacuation, settings.windows)
