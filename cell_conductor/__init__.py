"""Runs the builds of a cell: orders each build, tries the next host if one fails, and reports each end."""

from cell_conductor.audit import HeldByCell, PlaceByCell, Standing, census, held_by_cell, places
from cell_conductor.core.events import AttemptLimits
from cell_conductor.worker import cell_conductor

__all__ = [
    "AttemptLimits",
    "HeldByCell",
    "PlaceByCell",
    "Standing",
    "cell_conductor",
    "census",
    "held_by_cell",
    "places",
]
