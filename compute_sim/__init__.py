"""Simulated agents and their hosts, with seeded faults: what a cell talks to in demos, loads and tests."""

from compute_sim.agent import AgentDisk
from compute_sim.core import CrashPlan, Durations, FaultPlan
from compute_sim.fleet import SimAgent, SimHost, fleet
from compute_sim.worker import compute_sim

__all__ = ["AgentDisk", "CrashPlan", "Durations", "FaultPlan", "SimAgent", "SimHost", "compute_sim", "fleet"]
