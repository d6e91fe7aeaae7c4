"""A whole cell on an unkind bus: a conductor and its agents, and a placement that keeps books."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from bus.claims import ClaimAnswered, ClaimRequested, ReleaseAnswered, ReleaseRequested
from bus.delivery.runner import Bus
from bus.local import Chaos, LocalBroker, LocalTransport
from bus.messages import BuildEnded
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.topics import BUILD_DELETED, BUILD_ENDED, CELL_CLAIM, CELL_RELEASE
from bus.worker import Worker, answers_many
from cell_conductor import AttemptLimits, cell_conductor, census
from compute_sim import CrashPlan, Durations, FaultPlan, SimAgent, SimOptions, compute_sim
from tests.support.buses import queues_of
from tests.support.conductor_builders import CELL, Books, a_delete, a_placed

DEADLINE = 60.0
BUILDS = 60


def placement_with(books: Books) -> Worker:
    async def claim(questions: Sequence[ClaimRequested]) -> Sequence[ClaimAnswered]:
        return await books.claim_many(questions)

    async def release(questions: Sequence[ReleaseRequested]) -> Sequence[ReleaseAnswered]:
        return await books.release_many(questions)

    asked = [answers_many(CELL_CLAIM, claim, cell=CELL), answers_many(CELL_RELEASE, release, cell=CELL)]
    return Worker("placement", answers=asked)


def a_hasty_conductor(bus: Bus, database: Database) -> Worker:
    return cell_conductor(
        CELL,
        database,
        bus.asker_of_many(CELL_CLAIM),
        bus.asker_of_many(CELL_RELEASE),
        limits=AttemptLimits(build_timeout=1.0, poll_every=0.1, stalled_after=1.0),
    )


@asynccontextmanager
async def cell_at_work(broker: LocalBroker, database: Database, *others: Worker) -> AsyncIterator[Bus]:
    stopping = asyncio.Event()
    async with Bus(LocalTransport(broker)) as bus, asyncio.TaskGroup() as group:
        workers = [a_hasty_conductor(bus, database), *others]
        for worker in workers:
            await bus.transport.declare(*queues_of(worker))
        for worker in workers:
            group.create_task(bus.serve(worker, stopping, drain=0.0))
        try:
            yield bus
        finally:
            stopping.set()


@pytest.fixture
async def database() -> AsyncIterator[Database]:
    database = Database("sqlite+aiosqlite://", inline=True)
    await migrate(database, "cell_conductor")
    yield database
    await database.close()


@pytest.mark.parametrize("seed", range(3))
async def test_every_build_ends_once_and_holds_its_resources(database: Database, seed: int) -> None:
    broker = LocalBroker(chaos=Chaos(random.Random(seed), reorder=0.2, duplicate=0.2))
    faults = FaultPlan(
        seed=seed,
        reschedule=0.3,
        abort=0.1,
        hang=0.1,
        first_attempt_only=False,
        durations=Durations.parse("exponential:0.02"),
    )
    agents = [
        compute_sim(
            SimAgent(f"agent{n}", CELL, ()),
            SimOptions(faults=faults, crashes=CrashPlan(seed, 30, 0.1), period=60.0),
        )
        for n in range(3)
    ]
    placed = [a_placed(number) for number in range(BUILDS)]
    books = Books(*placed)
    told: dict[str, list[BuildEnded]] = defaultdict(list)

    async with Bus(LocalTransport(broker)) as client, asyncio.timeout(DEADLINE):
        ears = await client.listen(BUILD_ENDED.at())
        gone = await client.listen(BUILD_DELETED.at())
        async with cell_at_work(broker, database, placement_with(books), *agents):
            await client.publish(*placed)
            while len(told) < BUILDS // 2:
                end = await ears.get()
                told[end.build].append(end)
        # the whole cell dies with builds on their way, and comes back
        agents = [
            compute_sim(SimAgent(f"agent{n}", CELL, ()), SimOptions(faults=faults, period=60.0))
            for n in range(3)
        ]
        async with cell_at_work(broker, database, placement_with(books), *agents):
            while len(told) < BUILDS:
                end = await ears.get()
                told[end.build].append(end)
            deleted = placed[: BUILDS // 3]
            await client.publish(*map(a_delete, deleted))
            left = {message.build for message in deleted}
            while left:
                left.discard((await gone.get()).build)

    for ends in told.values():
        assert all(end == ends[0] for end in ends)
    standing = await census(database)
    kinds = Counter(one.status for one in standing.values())
    assert set(kinds) <= {"active", "error", "deleted"} and kinds["deleted"] == BUILDS // 3
    assert {id_ for id_, one in standing.items() if one.status == "active"} == set(books.held)
    for id_, (generation, allocations) in books.held.items():
        assert (standing[id_].generation, [standing[id_].root]) == (generation, list(allocations))
        assert told[id_][0].root == standing[id_].root
    assert {ends[0].status for ends in told.values()} == {"active", "error"}
    assert not broker.dead


async def test_a_cell_publishes_nothing_that_needs_an_answer_from_above(database: Database) -> None:
    async with Bus(LocalTransport(LocalBroker())) as bus:
        conductor = a_hasty_conductor(bus, database)
    agent = compute_sim(SimAgent("agent1", CELL, ()))
    may_say = {
        "AgentReported", "BuildOrdered", "DestroyOrdered", "BuildEnded", "BuildDeleted",
        "HostFailed", "HostReported", "InventoryReported", "NodeChanged",
        "MoveOrdered", "MoveReported", "MoveProgress", "MoveEnded",
            "HandoverReported", "BuildAdopted",
        "GuestsReported",
    }  # fmt: skip
    assert set(conductor.asks) == {CELL_CLAIM, CELL_RELEASE} and not agent.asks
    assert {kind.__name__ for kind in conductor.emits | agent.emits} == may_say
    assert conductor.name == f"conductor.{CELL}"
