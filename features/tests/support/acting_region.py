"""A region for tests of the audit trail and of roles: operators change its quota and delete its instances."""

from typing import Any

from bus import topics
from bus.audit_trail import ActRecord
from bus.clients import BuildPlace, FindProjects, ProjectsFound
from bus.messages import BuildDeleteRequested
from bus.resources import AllocationsFound, Consumer, FindAllocations
from bus.worker import Answers, Worker, answers, on, on_many
from features.moves.messages import MOVE_REQUESTED, MoveRequested
from features.quotas.messages import (
    EDIT_QUOTA,
    QUOTAS,
    FindQuotas,
    Quota,
    QuotaEditAnswered,
    QuotaEdited,
    QuotaEditRequested,
    QuotasFound,
    QuotaSourceIsKeystone,
    SetQuota,
)
from tests.support.ids import uid

LIMIT = QuotaEditRequested(edit=SetQuota(project="p1", limits={"VCPU": 2}))


class ActingRegion:
    """Handlers for a quota of project p1, for instances 1 and 2 of the projects p1 and p2 in the cells c1 and
    c2, and for records of
    the audit trail.
    """

    def __init__(self, **limits: int) -> None:
        self.limits: dict[str, int] = limits
        self.refuses = False
        self.deleted: list[BuildDeleteRequested] = []
        self.moved: list[MoveRequested] = []
        self.records: list[ActRecord] = []

    async def edit(self, order: QuotaEditRequested) -> QuotaEditAnswered:
        if self.refuses:
            return QuotaEditAnswered(result=QuotaSourceIsKeystone())
        assert isinstance(order.edit, SetQuota)
        self.limits = order.edit.limits
        return QuotaEditAnswered(result=QuotaEdited(changed=True))

    async def quotas(self, question: FindQuotas) -> QuotasFound:
        return QuotasFound(quotas=(Quota(project="p1", limits=self.limits),))

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

    async def move(self, asked: MoveRequested) -> None:
        self.moved.append(asked)

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
                on(MOVE_REQUESTED, self.move),
            ],
            answers=[
                answers(EDIT_QUOTA, self.edit),
                answers(QUOTAS, self.quotas),
                answers(topics.ALLOCATIONS, self.allocations),
                answers(topics.PROJECTS, self.projects),
                *further,
            ],
        )
