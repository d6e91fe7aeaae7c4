"""Queries for the groups of requests."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from bus.errors import AnswerRefused
from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable
from bus.requests import Hints
from bus.resources import AllocationsFound, Consumer, FindAllocations
from bus.topics import Query
from features.groups.messages import GROUPS, FindGroups, GroupsFound, ServerGroup
from features.groups.tests.support.group_parts import in_group
from scheduler_worker.testing import Scheduler
from tests.support.ids import uid
from tests.support.scheduler_builders import FakePlacement, a_candidate, a_request
from tests.support.schedulers import scheduler_of
from tests.support.virtual_time import TurnedClock

GUEST, HOST_ID = uid(7, "e"), uid(1, "c")
BAD = uid(66, "d")  # placement cannot take a question that names it
BATCH = 16


@dataclass
class Knowing:
    placement: FakePlacement = field(
        default_factory=lambda: FakePlacement(*(a_candidate(number) for number in range(6)))
    )
    questions: list[int] = field(default_factory=list)  # of each, how much it named

    async def groups(self, question: FindGroups) -> GroupsFound:
        self._ask(question.ids)
        project = a_request().project
        return GroupsFound(
            groups=tuple(
                ServerGroup(id=id_, name="g", project=project, policy="soft-affinity") for id_ in question.ids
            )
        )

    async def allocations(self, question: FindAllocations) -> AllocationsFound:
        self._ask(question.consumers)
        guest = Consumer(
            id=GUEST, generation=1, project="p", user="u", type="INSTANCE", allocations={HOST_ID: {"VCPU": 1}}
        )
        return AllocationsFound(consumers=(guest,) if GUEST in question.consumers else (), generations={})

    def _ask(self, ids: tuple[str, ...]) -> None:
        self.questions.append(len(ids))
        if BAD in ids:
            raise AnswerRefused("too deep for me")

    def scheduler(self) -> Scheduler:
        def ask(query: Query[Any, Any], /) -> Any:
            return self.groups if query is GROUPS else self.placement.asker(query)

        return scheduler_of(self.placement, clock=TurnedClock().clock, ask=ask, allocations=self.allocations)


async def reply(asked: Knowing, requests: list[BuildRequested]) -> dict[str, BuildPlaced | BuildUnplaceable]:
    sent: dict[str, BuildPlaced | BuildUnplaceable] = {}
    for request, verdict in zip(requests, await asked.scheduler().place_many(requests), strict=True):
        assert isinstance(verdict, list | tuple), verdict
        (sent[request.request],) = verdict
    return sent


@pytest.mark.parametrize(
    ("well", "wrong"),
    [
        ({"hints": Hints(different_host=(GUEST,))}, {"hints": Hints(different_host=(BAD,))}),
        ({"parts": in_group(uid(5, "d"))}, {"parts": in_group(BAD)}),
    ],
)
async def test_a_failed_lookup_concerns_its_request_only(well: Any, wrong: Any) -> None:
    asked = Knowing()
    requests = [a_request(number, **(wrong if number == 11 else well)) for number in range(BATCH)]
    sent = await reply(asked, requests)
    without = [request for request, answer in sent.items() if not isinstance(answer, BuildPlaced)]
    assert without == [requests[11].request]
    lost = sent[requests[11].request]
    assert isinstance(lost, BuildUnplaceable)
    assert lost.reason == "hints: placement cannot find what they name: too deep for me"
    assert len(asked.questions) <= 10  # in halves, not one by one


async def test_valid_requests_share_one_query() -> None:
    asked = Knowing()
    sent = await reply(
        asked, [a_request(number, hints=Hints(different_host=(GUEST,))) for number in range(4)]
    )
    assert asked.questions == [1]
    assert all(isinstance(answer, BuildPlaced) and answer.chosen.root != HOST_ID for answer in sent.values())
