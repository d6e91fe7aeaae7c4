"""The parts of all features, for tests that make a worker without the composition of berth."""

from berth.features import parts_of
from berth.settings import Settings
from cell_conductor.extension import ConductorNeeds, ConductorPart, ForConductor
from compute_sim.core.faults import SimOptions
from compute_sim.extension import AgentNeeds, AgentPart, ForAgent


def conductor_parts(cell: str) -> list[ConductorPart]:
    return parts_of(ForConductor, "conductor", ConductorNeeds(cell=cell), Settings())


def agent_parts(options: SimOptions | None = None) -> list[AgentPart]:
    return parts_of(ForAgent, "agent", AgentNeeds(options=options or SimOptions()), Settings())
