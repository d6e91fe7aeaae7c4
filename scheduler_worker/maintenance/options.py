"""The settings of maintenance windows and automatic evacuation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_worker.core.dead_hosts import EvacuationLimits


@dataclass(frozen=True)
class QuorumOptions:
    """The settings by which agents of other hosts confirm that a host is off."""

    votes: int = 0  # agents that must not reach it; 0: agents are not asked
    seconds: float = 60.0  # for this time, in every round of questions


@dataclass(frozen=True)
class EvacuationOptions:
    """The settings of automatic evacuation. If neither a fencing hook nor a quorum of agents is set, no host
    is evacuated.
    """

    hook: Sequence[str] = ()  # the command and its first arguments
    hook_seconds: float = 60.0
    limits: EvacuationLimits = field(default_factory=EvacuationLimits)
    quorum: QuorumOptions = field(default_factory=QuorumOptions)
    level: str = "rack"  # of the domains that the limits count, in addition to cells, zones and the cloud


@dataclass(frozen=True)
class MaintenanceOptions:
    lead: float = 600.0  # least seconds between the first drain of a window and the begin of the window
    evacuation: EvacuationOptions = field(default_factory=EvacuationOptions)
