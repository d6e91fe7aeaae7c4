"""A failing build ends once, in error with its causes, and all its allocations are released.

With one conductor, with two that handle every message, and with two of which one is killed repeatedly.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from berth.searching import placement_queries
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Retry
from bus.messages import (
    AgentReported,
    BuildEnded,
    BuildOrdered,
    DestroyOrdered,
    HostFailed,
)
from bus.sql.database import Database
from bus.sql.migrations import migrate
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
from bus.vocabulary import Message
from bus.worker import Worker, answers, answers_many
from cell_conductor import census
from cell_conductor.builds import Builds
from cell_conductor.core.events import AttemptLimits
from scheduler_worker import ChoicePolicy
from scheduler_worker.dependencies import SchedulerOptions
from tests.support.buses import Connect, serving
from tests.support.cloud_workers import served_scheduler
from tests.support.conductor_builders import (
    Books,
    a_build_order,
    a_delete,
    a_placed,
    a_selection,
    an_agent_report,
    deliver,
)
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

SILENT = "silent"


@dataclass
class ConductedCell:
    """Conductors of one database, with agents that do what is written here."""

    database: Database
    agents: dict[str, str]
    conductors: str
    books: Books = field(default_factory=Books)
    now: float = 1000.0
    ends: list[BuildEnded] = field(default_factory=list)
    failures: set[tuple[str, int]] = field(default_factory=set)
    answers_to_destroy: bool = True

    def __post_init__(self) -> None:
        self.chance = random.Random(7)
        self._heard: set[tuple[str, str, int]] = set()
        self._unanswered: list[DestroyOrdered] = []

    def conductor(self) -> Builds:
        clock = Clock(now=lambda: self.now, chance=self.chance, monotonic=lambda: self.now)
        limits = AttemptLimits(max_attempts=3, build_timeout=100.0, cleanup_timeout=5000.0)
        return Builds(
            self.database, self.books.claim_many, self.books.release_many, limits=limits, clock=clock
        )

    async def happens(self, *events: Message) -> None:
        waiting = list(events)
        while waiting:
            event = waiting.pop(0)
            for said in await self._handled(event):
                if isinstance(said, Retry):
                    waiting.append(event)
                else:
                    waiting += [answer for message in said for answer in self.answered(message)]

    async def remind(self) -> None:
        conductors = [self.conductor() for _ in range(1 if self.conductors == "one" else 2)]
        said = await asyncio.gather(
            *(conductor.time_out() for conductor in conductors),
            *(conductor.resume() for conductor in conductors),
        )
        for messages in said:
            for message in messages:
                await self.happens(
                    *([message] if isinstance(message, AgentReported) else self.answered(message))
                )

    async def come_back(self) -> None:
        self.answers_to_destroy = True
        await self.happens(*(an_agent_report(order, "destroyed") for order in self._unanswered))

    async def _handled(self, event: Message) -> list[Sequence[Message] | Retry]:
        if self.conductors == "one":
            return [await self.handle(event)]
        tasks = [asyncio.ensure_future(self.handle(event)) for _ in range(2)]
        if self.conductors == "one killed":
            await asyncio.sleep(self.chance.random() * 0.004)
            tasks[0].cancel()
            with suppress(asyncio.CancelledError):
                await tasks[0]
            return [await tasks[1]]
        return list(await asyncio.gather(*tasks))

    async def handle(self, event: Message) -> Sequence[Message] | Retry:
        builds = self.conductor()
        said = await deliver(builds, event)
        assert isinstance(said, Retry | Sequence)
        return said

    def answered(self, message: Message) -> list[Message]:
        match message:
            case BuildEnded():
                self.ends.append(message)
            case HostFailed():
                self.failures.add((message.host, message.attempt))
            case DestroyOrdered() if not self.answers_to_destroy:
                self._unanswered.append(message)
            case BuildOrdered() | DestroyOrdered():
                known = type(message).__name__, message.build, message.attempt
                if known in self._heard:
                    return []
                self._heard.add(known)
                if isinstance(message, DestroyOrdered):
                    return [an_agent_report(message, "destroyed")]
                does = self.agents.get(message.host, "failed")
                if does == "built":
                    return [an_agent_report(message, "built")]
                if does != SILENT:
                    cause = f"no luck on {message.host}"
                    return [an_agent_report(message, "failed", retry=does == "failed", cause=cause)]
        return []


ENDS = [
    pytest.param(
        {}, 3, {1, 2},
        ["every alternate was refused", "host0 failed: no luck", "host1 refused", "host2 refused"],
        id="all alternates refused",
    ),
    pytest.param(
        {}, 3, set(), ["host0 failed: no luck", "host1 failed: no luck", "host2 failed: no luck"],
        id="all failing",
    ),
    pytest.param({}, 1, set(), ["host0 failed: no luck on host0"], id="an empty list of alternates"),
    pytest.param({"host0": "aborted"}, 3, set(), ["aborted: host0 failed: no luck"], id="abort on the first"),
    pytest.param(
        {"host0": SILENT}, 1, set(), ["host0 timed out: no result within 100 s"],
        id="overdue, and it may be there",
    ),
    pytest.param(
        {"host0": SILENT, "host1": SILENT, "host2": "aborted"}, 3, set(),
        ["host0 timed out", "host1 timed out", "host2 failed"], id="two overdue, the third aborts",
    ),
]  # fmt: skip
CONDUCTORS = ["one", "two at once", "one killed"]


@pytest.mark.parametrize("conductors", CONDUCTORS)
@pytest.mark.parametrize(("agents", "hosts", "full", "causes"), ENDS)
async def test_every_failed_build_ends_once_with_its_causes_and_holds_nothing(
    database: Database, agents: dict[str, str], hosts: int, full: set[int], causes: list[str], conductors: str
) -> None:
    await migrate(database, "cell_conductor")
    cell, placed = ConductedCell(database, agents, conductors), a_placed(1, hosts=hosts)
    cell.books.hold(placed)
    cell.books.full = {a_selection(number).root for number in full}
    cell.answers_to_destroy = SILENT not in agents.values()

    await cell.happens(placed)
    for _ in range(hosts):
        cell.now += 101.0
        await cell.remind()

    assert {(end.build, end.status, end.reason) for end in cell.ends} == {
        (placed.build, "error", cell.ends[0].reason)
    }
    for cause in causes:
        assert cause in cell.ends[0].reason
    assert (await census(database))[placed.build].status == "error"
    silent = sum(does == SILENT for does in agents.values())
    assert len(cell.books.held) == silent  # their guests may be there, and their room stays paid for
    await cell.come_back()
    assert not cell.books.held
    assert not any(host not in {f"host{n}" for n in range(hosts)} for host, _ in cell.failures)


@pytest.mark.parametrize("conductors", CONDUCTORS)
async def test_repeated_events_build_and_destroy_a_guest_once(database: Database, conductors: str) -> None:
    await migrate(database, "cell_conductor")
    cell, batch = ConductedCell(database, {"host1": "built"}, conductors), [a_placed(n) for n in range(1, 6)]
    for placed in batch:
        cell.books.hold(placed)
    await cell.happens(*batch)
    await cell.remind()
    assert {(end.build, end.status, end.host) for end in cell.ends} == {
        (placed.build, "active", "host1") for placed in batch
    }
    assert {allocations.popitem()[0] for _, allocations in map(_copied, cell.books.held.values())} == {
        a_selection(1).root
    }
    await cell.happens(*(a_delete(placed) for placed in batch))
    await cell.remind()
    assert not cell.books.held
    assert {standing.status for standing in (await census(database)).values()} == {"deleted"}


def _copied(held: tuple[int, dict[str, dict[str, int]]]) -> tuple[int, dict[str, dict[str, int]]]:
    return held[0], dict(held[1])


async def test_two_conductors_that_receive_different_events_of_a_build_lose_neither(
    database: Database,
) -> None:
    await migrate(database, "cell_conductor")
    cell, batch = (
        ConductedCell(database, {f"host{n}": SILENT for n in range(3)}, "one"),
        [a_placed(n) for n in range(40)],
    )
    for placed in batch:
        cell.books.hold(placed)
    await cell.happens(*batch)
    said: list[tuple[Message, Sequence[Message] | Retry]] = []

    async def handle(event: Message) -> None:
        await asyncio.sleep(cell.chance.random() * 0.01)
        said.append((event, await cell.handle(event)))

    built = [an_agent_report(a_build_order(placed), "built") for placed in batch]
    await asyncio.gather(
        *(handle(one) for pair in zip(built, map(a_delete, batch), strict=True) for one in pair)
    )
    again = [event for event, verdict in said if isinstance(verdict, Retry)]
    for _, verdict in said:
        if not isinstance(verdict, Retry):
            again += [answer for message in verdict for answer in cell.answered(message)]
    await cell.happens(*again)
    assert {standing.status for standing in (await census(database)).values()} == {"deleted"}
    assert not cell.books.held
    assert len({end.build for end in cell.ends}) == len({(end.build, end.status) for end in cell.ends}) == 40


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


async def test_a_build_without_a_conductor_is_released_and_ends(connect: Connect) -> None:
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


async def test_hosts_of_unknown_cells_are_not_offered(connect: Connect) -> None:
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
