"""Simulates Ironic: its real state machine, its notifications and its REST API."""

from compute_sim.ironic.conductor import FAULTS, KINDS, SimPlan
from compute_sim.ironic.node import SimNode, enrolled
from compute_sim.ironic.notify import BusNotifier, IronicExchange
from compute_sim.ironic.power import BMC
from compute_sim.ironic.simulation import Simulation

__all__ = [
    "BMC",
    "FAULTS",
    "KINDS",
    "BusNotifier",
    "IronicExchange",
    "SimNode",
    "SimPlan",
    "Simulation",
    "enrolled",
]
