"""The part of preemption in the conductor of a cell."""

from collections.abc import Sequence
from typing import Any

from bus.addressing import Topic
from bus.topics import BUILD_PREEMPTED, BUILD_VACATE
from bus.worker import on_many
from cell_conductor.extension import BaseConductorPart, CellBuilds, Rows
from cell_conductor.preemption.courses import Preemptor, Victim
from cell_conductor.preemption.metrics import PreemptionMetrics


class PreemptionPart(BaseConductorPart):
    courses = (Victim(), Preemptor())
    stores = (PreemptionMetrics(),)
    effects = (BUILD_VACATE, BUILD_PREEMPTED)
    repeats = (BUILD_VACATE,)

    def rows(self, cell: str, builds: CellBuilds, effects: Sequence[Topic[Any]]) -> Rows:
        return Rows([on_many(BUILD_VACATE.at(cell=cell), builds.receive_many, emits=effects)])
