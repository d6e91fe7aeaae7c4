"""Ends of builds and moves that meet two conductors, or a cell without a conductor."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from berth.kit import placement_queries
from berth.kit.testing import census, packages
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Retry
from bus.messages import BuildEnded, BuildOrdered, DestroyOrdered
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.topics import ALLOCATIONS, BUILD_PLACED, BUILD_UNPLACEABLE, CLAIM, PROVIDERS, RELEASE
from bus.vocabulary import Message
from bus.worker import Worker, answers, answers_many
from cell_conductor.testing import Builds
from scheduler_worker.extension import ChoicePolicy, SchedulerOptions
from tests.support.buses import Connect, serving
from tests.support.cloud_workers import served_scheduler
from tests.support.conductor_builders import (
    FEATURES,
    Books,
    a_build_order,
    a_delete,
    a_placed,
    an_agent_report,
    deliver,
)
from tests.support.scheduler_builders import FakePlacement, a_candidate, a_request
from tests.support.waiting import patience


async def test_two_conductors_that_receive_different_events_of_a_build_lose_neither(
    database: Database,
) -> None:
    await migrate(database, *packages("conductor"))
    chance, batch = random.Random(7), [a_placed(n) for n in range(40)]
    books = Books(*batch)
    conductors = [Builds(database, books.claim_many, books.release_many, **FEATURES) for _ in range(2)]
    await conductors[0].start_many(batch)
    waiting: list[Message] = []
    ends: list[BuildEnded] = []

    async def handle(conductor: Builds, event: Message) -> None:
        await asyncio.sleep(chance.random() * 0.01)
        outcome = await deliver(conductor, event)
        if isinstance(outcome, Retry):
            waiting.append(event)
            return
        assert isinstance(outcome, Sequence)
        for message in outcome:
            if isinstance(message, BuildEnded):
                ends.append(message)
            elif isinstance(message, BuildOrdered | DestroyOrdered):
                outcome_there = "built" if isinstance(message, BuildOrdered) else "destroyed"
                waiting.append(an_agent_report(message, outcome_there))

    built = [an_agent_report(a_build_order(placed), "built") for placed in batch]
    deletes = map(a_delete, batch)
    events = [event for pair in zip(built, deletes, strict=True) for event in pair]
    await asyncio.gather(*(handle(conductors[nth % 2], event) for nth, event in enumerate(events)))
    while waiting:
        await handle(chance.choice(conductors), waiting.pop(0))
    assert {standing.status for standing in (await census(database)).values()} == {"deleted"}
    assert not books.held
    assert len({end.build for end in ends}) == len({(end.build, end.status) for end in ends}) == 40


DEADLINE = 60.0


def the_placement(placement: FakePlacement) -> Worker:
    return Worker(
        "placement",
        answers=[
            answers_many(CLAIM, placement.claim_many),
            answers(RELEASE, placement.release_one),
            answers(PROVIDERS, placement.providers),
            answers(ALLOCATIONS, placement.allocations),
        ],
    )


@asynccontextmanager
async def scheduling(
    connect: Connect, placement: FakePlacement, *conductors: Worker, policy: ChoicePolicy | None = None
) -> AsyncIterator[Bus]:
    async with Bus(connect()) as asking:
        options = SchedulerOptions(policy=policy or ChoicePolicy(), undeliverable_for=0.5)
        worker = served_scheduler(asking, placement.source, placement_queries(asking), Clock(), None, options)
        async with serving(connect, the_placement(placement), *conductors, worker) as bus:
            yield bus


async def test_a_build_without_a_conductor_is_released_and_ends(connect: Connect) -> None:
    """The request's other instance is placed in another cell, and so is a later request."""
    placement = FakePlacement(a_candidate(1, cell="c1"), a_candidate(2, cell="typo"))
    async with scheduling(connect, placement) as bus:
        placed = await bus.listen(BUILD_PLACED.at(cell="c1"))
        unplaceable = await bus.listen(BUILD_UNPLACEABLE.at())
        request = a_request(1, instances=2)
        await bus.publish(request)
        async with patience():
            lost = await unplaceable.get()
            built = await placed.get()
            await bus.publish(a_request(2, cell="c1"))
            while (other := await placed.get()).request == request.request:
                pass
        assert {built.build, *lost.instances} == set(request.instances)
        assert "cell 'typo': no conductor takes builds there" in lost.reason
        assert set(placement.held) == {built.build, other.build}
        assert set(placement.retired) == set(lost.instances)
        assert await bus.transport.dead_letters() == []
