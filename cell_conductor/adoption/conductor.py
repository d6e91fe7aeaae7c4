"""The part of adoption in the conductor of a cell."""

from collections.abc import Sequence
from typing import Any

from bus.addressing import Topic
from bus.topics import BUILD_ADOPT, BUILD_ADOPTED
from bus.worker import on_many
from cell_conductor.adoption.course import AdoptionCourse
from cell_conductor.adoption.handlers import Adoptions
from cell_conductor.extension import CellBuilds, ConductorPart, ConductorRows


def _rows(cell: str, builds: CellBuilds, effects: Sequence[Topic[Any]]) -> ConductorRows:
    adopt, emits = Adoptions(builds).adopt_many, (*effects, BUILD_ADOPTED)
    return ConductorRows([on_many(BUILD_ADOPT.at(cell=cell), adopt, emits=emits, concurrency=1)])


PART = ConductorPart(courses=(AdoptionCourse(),), rows=_rows)
