"""The names of simulated agents that features may import, and the part of a feature."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bus.feature import MakesPart, PartNeeds
from bus.worker import WorkerRows
from compute_sim.agent import HANG_SECONDS, NOTHING_HERE, SimulatedAgent
from compute_sim.agent_disk import AgentDisk
from compute_sim.core.faults import Fate, SimOptions
from compute_sim.core.ownership import GuestState
from compute_sim.driver_kit.stand import DriverStand, Rule, RuleBroken
from compute_sim.guest_driver import GuestDriver
from compute_sim.guests import AgentJob, GuestRecord
from compute_sim.hooks import run_hook


def _no_operations(driver: GuestDriver | None) -> Sequence[str]:
    return ()


def _no_rules(stand: DriverStand) -> Sequence[Rule]:
    return ()


@dataclass(frozen=True, kw_only=True)
class AgentNeeds(PartNeeds):
    """The objects from which a feature makes its part of the simulated agents of a process."""

    options: SimOptions


@dataclass(frozen=True, kw_only=True)
class AgentPart:
    """A feature's part of simulated agents."""

    name: str
    rows: Callable[[SimulatedAgent, str], WorkerRows]  # gets an agent and the name of its cell
    # Returns the operations that a host supports, for its heartbeats; gets the driver of its hypervisor, or
    # None if the host is simulated.
    operations: Callable[[GuestDriver | None], Sequence[str]] = _no_operations
    # Returns further tests of an operator's driver of a hypervisor.
    driver_rules: Callable[[DriverStand], Sequence[Rule]] = _no_rules
    offers: tuple[object, ...] = ()  # objects for the features that need this one


class ForAgent(MakesPart[AgentNeeds, AgentPart]):
    """The value PART of a feature's module `agent`."""
