"""A region for tests of the audit trail and of roles: operators edit its cell and delete its instances."""

from typing import Any

from bus import topics
from bus.audit_trail import ActRecord
from bus.cells import (
    CellEditAnswered,
    CellEdited,
    CellEditRequested,
    CellInUse,
    CellsFound,
    FindCells,
    RegisterCell,
    RegisteredCell,
)
from bus.messages import BuildDeleteRequested
from bus.projects import BuildPlace, FindProjects, ProjectsFound
from bus.resources import AllocationsFound, Consumer, FindAllocations
from bus.worker import Answers, Worker, answers, on, on_many
from tests.support.ids import uid

CLOSE = CellEditRequested(edit=RegisterCell(cell="c1", enabled=False))


class ActingRegion:
    """Handlers for edits of the cell c1, for instances 1 and 2 of the projects p1 and p2 in the cells c1 and
    c2, and for records of the audit trail.
    """

    def __init__(self) -> None:
        self.is_enabled = True  # whether the cell c1 is enabled
        self.refuses = False
        self.deleted: list[BuildDeleteRequested] = []
        self.records: list[ActRecord] = []

    async def edit(self, order: CellEditRequested) -> CellEditAnswered:
        if self.refuses:
            return CellEditAnswered(result=CellInUse(cell="c1", instances=1))
        assert isinstance(order.edit, RegisterCell)
        self.is_enabled = bool(order.edit.enabled)
        return CellEditAnswered(result=CellEdited(cell=self._cell, number=1))

    async def cells(self, question: FindCells) -> CellsFound:
        return CellsFound(seen=1, cells=(self._cell,))

    @property
    def _cell(self) -> RegisteredCell:
        return RegisteredCell(name="c1", enabled=self.is_enabled)

    async def allocations(self, question: FindAllocations) -> AllocationsFound:
        consumers = (
            Consumer(
                id=uid(number), generation=1, project=f"p{number}", user="u", type=None,
                allocations={uid(9): {"VCPU": 1}},
            )
            for number in (1, 2)
            if uid(number) in question.consumers
        )  # fmt: skip
        return AllocationsFound(consumers=tuple(consumers), generations={})

    async def projects(self, question: FindProjects) -> ProjectsFound:
        ids = {*question.new, *question.existing} & {uid(1), uid(2)}
        return ProjectsFound(
            projects={id_: "p1" if id_ == uid(1) else "p2" for id_ in ids},
            places={id_: BuildPlace(cell="c1" if id_ == uid(1) else "c2", root=uid(9)) for id_ in ids},
        )

    async def delete(self, order: BuildDeleteRequested) -> None:
        self.deleted.append(order)

    async def record(self, messages: Any) -> list[None]:
        self.records += [record for message in messages for record in message.records]
        return [None] * len(messages)

    def worker(self, *further: Answers) -> Worker:
        return Worker(
            "scheduler",
            consumes=[
                on_many(topics.ACTS_RECORDED, self.record),
                on(topics.BUILD_DELETE.at(cell="c1"), self.delete),
            ],
            answers=[
                answers(topics.EDIT_CELL, self.edit),
                answers(topics.CELLS, self.cells),
                answers(topics.ALLOCATIONS, self.allocations),
                answers(topics.PROJECTS, self.projects),
                *further,
            ],
        )
