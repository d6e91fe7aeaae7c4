"""The features of a conductor: the only place that lists them."""

from cell_conductor.adoption.conductor import AdoptionPart
from cell_conductor.extension import ConductorPart
from cell_conductor.moves.conductor import MovesPart
from cell_conductor.preemption.conductor import PreemptionPart

# The order of parts is the order in which their courses are asked about an event.
PARTS: tuple[ConductorPart, ...] = (PreemptionPart(), MovesPart(), AdoptionPart())
COURSES = tuple(course for part in PARTS for course in part.courses)
