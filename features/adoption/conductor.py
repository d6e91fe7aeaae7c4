"""The part of adoption in the conductor of a cell."""

from bus.worker import WorkerRows, on_many
from cell_conductor.extension import CellBuilds, ConductorNeeds, ConductorPart, ForConductor
from features.adoption.adopting import Adoptions
from features.adoption.core.adoption import AdoptionCourse
from features.adoption.messages import BUILD_ADOPT, BUILD_ADOPTED


def part(needs: ConductorNeeds, settings: None) -> ConductorPart:
    requested = BUILD_ADOPT.at(cell=needs.cell)

    def rows(builds: CellBuilds) -> WorkerRows:
        adopt, emits = Adoptions(builds).adopt_many, (*builds.effects, BUILD_ADOPTED)
        return WorkerRows(consumes=[on_many(requested, adopt, emits=emits, concurrency=1)])

    return ConductorPart(courses=(AdoptionCourse(),), rows=rows)


PART = ForConductor(part)
