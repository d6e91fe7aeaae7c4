"""The features of a conductor: the only place that lists them."""

from cell_conductor.adoption.conductor import PART as ADOPTION
from cell_conductor.moves.conductor import PART as MOVES
from cell_conductor.preemption.conductor import PART as PREEMPTION

PARTS = (PREEMPTION, MOVES, ADOPTION)  # courses are asked in this order
