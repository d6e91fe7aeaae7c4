"""The part of preemption in the conductor of a cell."""

from collections.abc import Sequence
from typing import Any

from bus.addressing import Topic
from bus.topics import BUILD_PREEMPTED, BUILD_VACATE
from bus.worker import on_many
from cell_conductor.extension import CellBuilds, ConductorPart, ConductorRows
from cell_conductor.preemption.courses import PreemptorCourse, VictimCourse
from cell_conductor.preemption.metrics import PreemptionMetrics


def _rows(cell: str, builds: CellBuilds, effects: Sequence[Topic[Any]]) -> ConductorRows:
    return ConductorRows([on_many(BUILD_VACATE.at(cell=cell), builds.receive_many, emits=effects)])


PART = ConductorPart(
    courses=(VictimCourse(), PreemptorCourse()),
    stores=(PreemptionMetrics(),),
    effects=(BUILD_VACATE, BUILD_PREEMPTED),
    repeats=(BUILD_VACATE,),
    rows=_rows,
)
