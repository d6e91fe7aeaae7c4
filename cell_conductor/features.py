"""The features of a conductor: the only place that lists them."""

from cell_conductor.adoption.course import AdoptionCourse
from cell_conductor.core.course import Courses
from cell_conductor.extension import CourseStore
from cell_conductor.moves.core.course import Moves
from cell_conductor.moves.store import MoveStore
from cell_conductor.preemption.courses import Preemptor, Victim
from cell_conductor.preemption.metrics import PreemptionMetrics

COURSES: Courses = (Victim(), Preemptor(), Moves(), AdoptionCourse())
STORES: tuple[CourseStore, ...] = (MoveStore(), PreemptionMetrics())
