"""All that tests and benchmarks of features import of simulated agents, besides `compute_sim.extension`."""

from compute_sim.agent_disk import GuestFile
from compute_sim.core.faults import CrashPlan, Durations, FaultPlan, MoveFaults
from compute_sim.ironic.conductor import SimPlan
from compute_sim.ironic.node import enrolled
from compute_sim.ironic.simulation import Simulation
from compute_sim.machines import Hardware, SimAgent, fleet
from compute_sim.recovery import GuestRecovery
from compute_sim.reporting import HostTrees
from compute_sim.worker import compute_sim

__all__ = [
    "CrashPlan",  # at which steps an agent crashes
    "Durations",  # how long an agent takes for its work
    "FaultPlan",  # which work of an agent fails
    "GuestFile",  # the file that keeps the guests of an agent
    "GuestRecovery",  # what an agent does at its start with guests that it finds
    "Hardware",  # the hardware of simulated hosts
    "HostTrees",  # the providers of an agent's hosts
    "MoveFaults",  # which work of moves fails
    "SimAgent",  # a simulated agent: its name, cell and hosts
    "SimPlan",  # durations and failures of a simulated Ironic
    "Simulation",  # a simulated Ironic
    "compute_sim",  # the worker's table of rows
    "enrolled",  # a new node of a simulated Ironic
    "fleet",  # agents with hosts, in cells
]
