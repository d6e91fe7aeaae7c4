"""The parts and modules of all features, for tests that make a worker without the composition of berth."""

from types import ModuleType

from berth.features import features, modules_of, parts_of
from berth.settings import Settings
from cell_conductor.extension import ConductorNeeds, ConductorPart, ForConductor
from compute_sim.core.faults import SimOptions
from compute_sim.extension import AgentNeeds, AgentPart, ForAgent


def modules_of_features(name: str) -> list[ModuleType]:
    """Return the modules with this name, such as `scheduler`, of all features."""
    return [module for feature in features() for module in modules_of(feature, name)]


def conductor_parts(cell: str) -> list[ConductorPart]:
    return parts_of(ForConductor, "conductor", ConductorNeeds(cell=cell), Settings())


def agent_parts(options: SimOptions | None = None) -> list[AgentPart]:
    return parts_of(ForAgent, "agent", AgentNeeds(options=options or SimOptions()), Settings())
