"""The part of preemption in the conductor of a cell."""

from bus.worker import WorkerRows, on_many
from cell_conductor.extension import CellBuilds, ConductorNeeds, ConductorPart, ForConductor
from features.preemption.core.courses import PreemptorCourse, VictimCourse
from features.preemption.messages import BUILD_PREEMPTED, BUILD_VACATE


def part(needs: ConductorNeeds, settings: None) -> ConductorPart:
    vacated = BUILD_VACATE.at(cell=needs.cell)

    def rows(builds: CellBuilds) -> WorkerRows:
        return WorkerRows(consumes=[on_many(vacated, builds.receive_many, emits=builds.effects)])

    victims = VictimCourse()
    return ConductorPart(
        courses=(victims, PreemptorCourse()),
        offers=(victims,),
        effects=(BUILD_VACATE, BUILD_PREEMPTED),
        repeats=(BUILD_VACATE,),
        rows=rows,
    )


PART = ForConductor(part)
