"""The part of shared nodes in the conductor of a cell."""

from cell_conductor.extension import ConductorNeeds, ConductorPart, ForConductor
from features.shared_nodes.ring import Ring


def part(needs: ConductorNeeds, settings: None) -> ConductorPart:
    return ConductorPart(sharing=lambda builds: Ring(needs.cell, builds))


PART = ForConductor(part)
