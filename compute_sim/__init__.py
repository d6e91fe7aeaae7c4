"""Simulates agents and hosts with seeded faults, for demos, load tests and tests."""

from compute_sim.core.faults import CrashPlan, Durations, FaultPlan, MoveFaults, SimOptions
from compute_sim.disk import AgentDisk
from compute_sim.guest_file import GuestFile
from compute_sim.machines import BadMachine, Hardware, Machine, SimAgent, SimHost, agent_name, fleet, machines
from compute_sim.worker import compute_sim

__all__ = [
    "AgentDisk",
    "BadMachine",
    "CrashPlan",
    "Durations",
    "FaultPlan",
    "GuestFile",
    "Hardware",
    "Machine",
    "MoveFaults",
    "SimAgent",
    "SimHost",
    "SimOptions",
    "agent_name",
    "compute_sim",
    "fleet",
    "machines",
]
