"""A request with the ids of an earlier one: the same content has the same result, another one is refused."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from berth.features import packages
from bus.clock import Clock
from bus.messages import (
    BuildConflict,
    BuildEnded,
    BuildOrdered,
    BuildPlaced,
    BuildRequested,
    BuildUnplaceable,
)
from bus.requests import Image
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from cell_conductor.builds import Builds
from scheduler_worker.placing.new_requests import NewRequests
from scheduler_worker.refusals import RefusalRecords
from tests.support.conductor_builders import FEATURES, Books, an_agent_report, deliver
from tests.support.scheduler_builders import SMALL, FakePlacement, a_candidate, a_request
from tests.support.schedulers import scheduler_of

BIG = replace(SMALL, name="big", vcpus=2)
FIRST = a_request(reply_to="me", user="u", project="p", metadata={"a": "1", "b": "2"}, name="web")
OTHERS = [
    (replace(FIRST, flavor=BIG), "flavor"),
    (replace(FIRST, image=Image(name="debian")), "image"),
    (replace(FIRST, metadata={"a": "1", "b": "3"}), "metadata"),
    (replace(FIRST, name="db"), "name"),
    (replace(FIRST, user="v"), "user"),
    (replace(FIRST, or_else=(BIG,)), ""),  # what the cell has of the request does not show the difference
    (replace(FIRST, root_required=("CUSTOM_FAST",)), ""),
    (replace(FIRST, flavor=replace(SMALL, extra_specs={"trait:x": "maybe"})), "flavor"),  # also invalid
    (replace(FIRST, request="99999999-0000-4000-8000-000000000000"), "request"),
]


class RepeatingRegion:
    """A scheduler and the conductor of a cell, with stored builds and decisions."""

    def __init__(self, database: Database, placement: FakePlacement) -> None:
        self._database, self._placement, self._books = database, placement, Books()
        self.restart()

    def restart(self) -> None:
        records = RefusalRecords(self._database, Clock())
        self._requests = NewRequests(scheduler_of(self._placement), records)
        self.builds = Builds(self._database, self._books.claim_many, self._books.release_many, **FEATURES)

    async def ask(self, request: BuildRequested) -> Sequence[Message]:
        """Return the answers of the scheduler to a request, or those of the cell to the scheduler."""
        (messages,) = await self._requests.place_many([request])
        assert isinstance(messages, list | tuple), messages
        answers: list[Message] = []
        for message in messages:
            if isinstance(message, BuildUnplaceable | BuildConflict):
                answers.append(message)
            else:
                if isinstance(message, BuildPlaced):
                    self._books.hold(message)
                outcome = await deliver(self.builds, message)
                assert isinstance(outcome, list | tuple), outcome
                answers += outcome
        return answers

    async def place(self, request: BuildRequested) -> BuildOrdered:
        (order,) = await self.ask(request)
        assert isinstance(order, BuildOrdered)
        return order

    async def report(self, order: BuildOrdered, outcome: str) -> list[Message]:
        messages = await deliver(self.builds, an_agent_report(order, outcome))
        assert isinstance(messages, list | tuple), messages
        return list(messages)

    async def conflict(self, request: BuildRequested) -> BuildConflict:
        (answer,) = await self.ask(request)
        assert isinstance(answer, BuildConflict), answer
        assert (answer.request, answer.instances) == (request.request, request.instances)
        assert answer.reply_to == request.reply_to
        return answer


def hosts(several: int) -> FakePlacement:
    return FakePlacement(*map(a_candidate, range(several)))


@pytest.fixture
async def tables(database: Database) -> Database:
    await migrate(database, *packages("conductor"), *packages("scheduler"))
    return database


async def test_other_content_is_refused_while_the_build_has_a_host(tables: Database) -> None:
    region = RepeatingRegion(tables, hosts(5))
    order = await region.place(FIRST)
    for other, field in OTHERS:
        refused = await region.conflict(replace(other, reply_to="you"))
        assert field in refused.fields if field else not refused.fields
    region.restart()
    assert await region.place(FIRST) == order
    for other, _ in OTHERS:
        await region.conflict(other)
    (ended,) = await region.report(order, "built")
    assert isinstance(ended, BuildEnded) and ended.status == "active"


async def test_other_content_is_refused_after_the_build_has_ended(tables: Database) -> None:
    placement = hosts(5)
    region = RepeatingRegion(tables, placement)
    order = await region.place(FIRST)
    ends = await region.report(order, "built")
    assert await region.ask(FIRST) == ends
    for other, _ in OTHERS:
        await region.conflict(other)
    (instance,) = FIRST.instances
    placement.held.pop(instance)
    placement.retired[instance], placement.ended_in[instance] = "deleted", order.cell
    assert await region.ask(FIRST) == ends
    for other, _ in OTHERS:
        await region.conflict(other)


async def test_other_content_is_refused_after_the_request_got_no_host(tables: Database) -> None:
    region = RepeatingRegion(tables, hosts(0))
    (unplaceable,) = await region.ask(FIRST)
    assert isinstance(unplaceable, BuildUnplaceable)
    for other, field in OTHERS:
        [differing] = (await region.conflict(other)).fields
        assert differing == field or getattr(other, differing)
    region.restart()
    (again,) = await region.ask(FIRST)
    assert isinstance(again, BuildUnplaceable) and again.reason == unplaceable.reason
    for other, _ in OTHERS:
        await region.conflict(other)


async def test_a_repetition_may_have_another_reply_address_and_order_of_metadata(tables: Database) -> None:
    region = RepeatingRegion(tables, hosts(5))
    order = await region.place(FIRST)
    repeated = replace(FIRST, reply_to="you", metadata={"b": "2", "a": "1"}, strict=True)
    assert await region.place(repeated) == order


async def test_the_instances_of_a_request_are_compared_each_for_itself(tables: Database) -> None:
    region = RepeatingRegion(tables, hosts(5))
    order = await region.place(FIRST)
    more = replace(FIRST, instances=(*FIRST.instances, a_request(7).instances[0]), at_least=1)
    again, new = await region.ask(more)
    assert again == order and isinstance(new, BuildOrdered) and new.build == more.instances[1]
