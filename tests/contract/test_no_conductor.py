"""A cell without a conductor: its builds are released and end, on both buses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from berth.searching import placement_queries
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.topics import (
    ALLOCATIONS,
    BUILD_PLACED,
    BUILD_UNPLACEABLE,
    CLAIM,
    FIND_BUILDS,
    GROUPS,
    MOVE_PLACED,
    MOVE_REFUSED,
    PROVIDERS,
    RELEASE,
)
from bus.worker import Worker, answers, answers_many
from scheduler_worker import ChoicePolicy
from scheduler_worker.dependencies import SchedulerOptions
from tests.support.buses import Connect, serving
from tests.support.cloud_workers import served_scheduler
from tests.support.ids import uid
from tests.support.move_builders import (
    BUILD,
    MOVE,
    Cells,
    MovingPlacement,
    a_build_that_stands,
    a_move,
)
from tests.support.scheduler_builders import FakePlacement, a_candidate, a_request

DEADLINE = 60.0


def the_placement(placement: FakePlacement) -> Worker:
    return Worker(
        "placement",
        answers=[
            answers_many(CLAIM, placement.claim_many),
            answers(RELEASE, placement.release),
            answers(PROVIDERS, placement.providers),
            answers(ALLOCATIONS, placement.allocations),
            answers(GROUPS, placement.find_groups),
        ],
    )


@asynccontextmanager
async def scheduling(
    connect: Connect, placement: FakePlacement, policy: ChoicePolicy | None = None
) -> AsyncIterator[Bus]:
    async with Bus(connect()) as asking:
        options = SchedulerOptions(policy=policy or ChoicePolicy(), unheard_for=0.5)
        worker = served_scheduler(asking, placement.source, placement_queries(asking), Clock(), None, options)
        async with serving(connect, the_placement(placement), worker) as bus:
            yield bus


async def test_what_cannot_be_handed_over_is_given_back_and_ends(connect: Connect) -> None:
    """Its sister in another cell is placed, and another request, too."""
    placement = FakePlacement.of(a_candidate(1, cell="c1"), a_candidate(2, cell="typo"))
    async with scheduling(connect, placement) as bus:
        placed = await bus.listen(BUILD_PLACED.at(cell="c1"))
        unplaceable = await bus.listen(BUILD_UNPLACEABLE.at())
        request = a_request(1, instances=2)
        await bus.publish(request)
        async with asyncio.timeout(DEADLINE):
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


async def test_the_hosts_of_a_cell_that_is_none_of_ours_are_not_offered(connect: Connect) -> None:
    placement = FakePlacement.of(a_candidate(2, cell="typo"))
    async with scheduling(connect, placement, ChoicePolicy.from_names(cells=("c1", "c2"))) as bus:
        unplaceable = await bus.listen(BUILD_UNPLACEABLE.at())
        await bus.publish(a_request(1))
        async with asyncio.timeout(DEADLINE):
            lost = await unplaceable.get()
    assert "without an agent or conductor: 1 host" in lost.reason
    assert "host2 (its cell 'typo' is none of ours: c1, c2)" in lost.reason
    assert placement.orders == []


@asynccontextmanager
async def moving(connect: Connect, placement: MovingPlacement, cells: Cells) -> AsyncIterator[Bus]:
    """A conductor of cell1 answers how builds stand."""
    known = the_placement(placement)
    conductor = Worker("conductor", answers=[answers(FIND_BUILDS, cells.find, cell="cell1")])
    async with Bus(connect()) as asking:
        options = SchedulerOptions(unheard_for=0.5)
        worker = served_scheduler(asking, placement.source, placement_queries(asking), Clock(), None, options)
        async with serving(connect, known, conductor, worker) as bus:
            yield bus


def a_cloud_with_a_build() -> tuple[MovingPlacement, Cells]:
    placement = MovingPlacement.of(a_candidate(1), a_candidate(2))
    assert isinstance(placement, MovingPlacement)
    placement.hold(BUILD, 1)
    cells = Cells()
    cells.know(a_build_that_stands(1))
    return placement, cells


async def test_a_move_is_placed_in_the_cell_of_its_build(connect: Connect) -> None:
    placement, cells = a_cloud_with_a_build()
    async with moving(connect, placement, cells) as bus:
        placed = await bus.listen(MOVE_PLACED.at(cell="cell1"))
        await bus.publish(a_move())
        async with asyncio.timeout(DEADLINE):
            message = await placed.get()
    assert (message.move, message.build) == (MOVE, BUILD)
    assert message.chosen is not None and message.chosen.root == uid(2, "c")


async def test_a_move_that_no_conductor_takes_is_undone_and_refused(connect: Connect) -> None:
    placement, cells = a_cloud_with_a_build()
    async with moving(connect, placement, cells) as bus:
        refused = await bus.listen(MOVE_REFUSED.at())
        await bus.publish(a_move())
        async with asyncio.timeout(DEADLINE):
            message = await refused.get()
        assert (message.move, message.code) == (MOVE, "no_conductor")
        assert placement.roots(BUILD) == {uid(1, "c")}
        assert placement.held.keys() == {BUILD}
        assert await bus.transport.dead_letters() == []
