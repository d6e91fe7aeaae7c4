"""The settings of maintenance windows and automatic evacuation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_worker.core.dead_hosts import EvacuationLimits


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
