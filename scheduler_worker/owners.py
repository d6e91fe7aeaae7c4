"""Finds who owns an id. The ids of requests, builds, moves and objects of features, such as server groups,
are one name space: no id stands for objects of two projects.

Every interface that limits its callers to projects or cells asks here, so there is one judgement for all of
them.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from bus.claims import HOLDER_TYPES, Held
from bus.errors import AnswerRefused, Unavailable, Unroutable
from bus.projects import BuildPlace, FindProjects, ProjectsFound
from bus.queries import FindBuilds
from bus.resources import Consumer, FindAllocations
from bus.sql.database import Database
from bus.vocabulary import Id, portions
from scheduler_worker.core.existing_claims import place_of
from scheduler_worker.dependencies import PLACEMENT_ASKED, providers_of
from scheduler_worker.placing.scheduler import Scheduler
from scheduler_worker.queries import CellQueries
from scheduler_worker.store.decisions import projects_of

IN_USE = ""  # the project of an id that is in use, but not for a build or request of a known project
BUILDS_ASKED = 100  # build ids in one query to a cell


@dataclass(slots=True)
class _Recorded:
    """The records of placement about some ids."""

    consumers: dict[Id, Consumer] = field(default_factory=dict)
    # objects of features, and started moves, with their projects
    objects: dict[Id, str] = field(default_factory=dict)
    retired: dict[Id, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Owners:
    """Finds the project and the cell of instances and of objects of features, for the judgement of acts."""

    database: Database
    cells: CellQueries
    scheduler: Scheduler

    async def find(self, question: FindProjects) -> ProjectsFound:
        """Return the project of each id that is in use.

        The record of placement outranks a cell's, and both outrank the scheduler's record of a request that
        waits or got no host: a request can name any id, but a claim or a build proves its owner.
        """
        new, existing = {*question.new}, {*question.existing}
        ids = sorted(new | existing)
        if not ids:
            return ProjectsFound()
        async with self.database.read() as tx:
            projects = await projects_of(tx, ids)
        for fallback in self.scheduler.fallbacks:
            projects |= await fallback.projects_of(ids)
        recorded = await self._recorded(ids)
        unsure = {id_ for id_ in existing if id_ not in projects} | {
            id_ for id_, cell in recorded.retired.items() if cell or id_ not in projects
        }
        for consumer in recorded.consumers.values():
            projects[consumer.id] = IN_USE if consumer.type in HOLDER_TYPES else consumer.project
        projects |= {id_: IN_USE if id_ in existing else of for id_, of in recorded.objects.items()}
        unsure -= recorded.consumers.keys() | recorded.objects.keys()
        found = await self._in_cells(unsure, recorded.retired)
        for id_ in unsure:
            if id_ in found:
                projects[id_] = found[id_][0]
            elif id_ in recorded.retired:  # its cell is silent, or has deleted its record
                projects[id_] = IN_USE
        places = await self._places(recorded, found) if question.places else {}
        return ProjectsFound(projects=projects, places=places)

    async def _recorded(self, ids: Collection[Id]) -> _Recorded:
        recorded = _Recorded()
        for some in portions(ids, PLACEMENT_ASKED):
            answer = await self.scheduler.placement.allocations(FindAllocations(consumers=some, others=True))
            recorded.consumers |= {consumer.id: consumer for consumer in answer.consumers}
            recorded.objects |= answer.objects
            recorded.retired |= answer.retired
        return recorded

    async def _in_cells(self, ids: Collection[Id], retired: Mapping[Id, str]) -> dict[Id, tuple[str, str]]:
        """Return the project and the cell of each build with one of these ids. An id may also be that of a
        feature's object, such as a move: then they are those of the moved build. A retired build is looked
        up only in the cell that retired it.
        """
        everywhere = sorted({host.cell for host in self.scheduler.source.hosts()} - {""}) if ids else []
        asked: dict[str, list[Id]] = {}
        for id_ in sorted(ids):
            for cell in [retired[id_]] if retired.get(id_) else everywhere:
                asked.setdefault(cell, []).append(id_)
        answers = await asyncio.gather(*(self._in_cell(cell, some) for cell, some in asked.items()))
        found: dict[Id, tuple[str, str]] = {}
        for answer in answers:
            found |= answer
        return found

    async def _in_cell(self, cell: str, ids: Sequence[Id]) -> dict[Id, tuple[str, str]]:
        """Return what a cell has recorded about some ids; empty if the cell does not answer."""
        found: dict[Id, tuple[str, str]] = {}
        try:
            for some in portions(ids, BUILDS_ASKED):
                subjects: dict[Id, Id] = {}  # id of an object of a feature → its build
                for part in self.scheduler.parts:
                    for builds_of in part.builds_of:
                        subjects |= await builds_of(cell, some)
                builds = sorted({*some, *subjects.values()})
                for few in portions(builds, BUILDS_ASKED):
                    answer = await self.cells.builds(FindBuilds(cell=cell, builds=few))
                    found |= {each.build: (each.placed.spec.project, cell) for each in answer.builds}
                found |= {id_: found[build] for id_, build in subjects.items() if build in found}
        except (Unavailable, Unroutable, AnswerRefused):
            pass
        return {id_: found[id_] for id_ in ids if id_ in found}

    async def _places(self, recorded: _Recorded, found: Mapping[Id, tuple[str, str]]) -> dict[Id, BuildPlace]:
        held = {
            id_: Held(generation=consumer.generation, allocations=consumer.allocations)
            for id_, consumer in recorded.consumers.items()
        }
        providers = {provider for each in held.values() for provider in each.allocations}
        read = await providers_of(self.scheduler.placement, sorted(providers), ("traits", "owner"))
        places = {id_: BuildPlace(cell=cell) for id_, (_, cell) in found.items()}
        for id_, each in held.items():
            place = place_of(each, read)
            if place is not None:
                places[id_] = BuildPlace(cell=place.cell, root=place.root, host=place.host)
        return places
