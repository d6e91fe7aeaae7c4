"""See each build of a cell through: order it, swap hosts when it fails, say once how it ended."""

from cell_conductor.keeping import KeptByCell, keeping
from cell_conductor.places import PlaceByCell, places
from cell_conductor.store import Standing, census
from cell_conductor.worker import cell_conductor

__all__ = ["KeptByCell", "PlaceByCell", "Standing", "cell_conductor", "census", "keeping", "places"]
