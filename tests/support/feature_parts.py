"""The parts of all features, for tests that make a worker without the composition of berth."""

from berth.features import parts_of
from berth.settings import Settings
from cell_conductor.extension import ConductorNeeds, ConductorPart


def conductor_parts(cell: str) -> list[ConductorPart]:
    return parts_of("conductor", ConductorNeeds(cell=cell), Settings())
