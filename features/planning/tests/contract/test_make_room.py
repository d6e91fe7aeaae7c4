"""Schedulers make room as durable plans: hosts are closed and opened, and a killed scheduler is replaced."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from msgspec import structs

from berth.kit import disabling, enabling, host_named
from berth.kit.testing import packages, state_of
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.local import LocalBroker, LocalTransport
from bus.parts import PlanParts
from bus.resources import AllocationsFound, EditRequested, FindAllocations, SetTraits
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from features.moves.messages import (
    FindPlans,
    MoveOfPlan,
    MoveRequested,
    PlanOfMoves,
    PlanStands,
    StartPlan,
    StopPlan,
)
from features.moves.plans import AGAIN_SECONDS, LEAD_SECONDS, MovePlans
from features.moves.tests.support.fake_movers import FakeMovers, an_instance_there
from features.planning.core.room_course import RETRIES
from features.planning.making_room import RoomMaking
from features.planning.messages import PlannedStep, PlanningGoal, PlanRoom, RoomGoal, RoomPlanned, room_of
from features.planning.tests.support.planned_steps import a_step
from features.what_if.messages import PlacedThere
from placement_worker.testing import IndexedSource, Placement
from tests.support.buses import serving
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, a_report
from tests.support.placement_calls import report, silent_placement
from tests.support.scheduler_builders import a_request
from tests.support.schedulers import queries_of
from tests.support.virtual_time import TurnedClock
from tests.support.waiting import until

H1, H2 = uid(1, "a"), uid(2, "a")
CLOSED, OPEN = "disabled, because of make_room", "open"
PLAN = uid(7)


TARGET = PlacedThere(root=H1, host="host-1", cell="c1")
FITS = RoomPlanned(targets=(TARGET,))
NONE = RoomPlanned(code="destinations", why="none fits")


DATABASES = ["sqlite file"]  # test_rebalancings.py runs the statements on PostgreSQL, too


def a_plan(*steps: PlannedStep) -> RoomPlanned:
    return RoomPlanned(moves=steps, targets=(TARGET,))


WAVES = a_plan(a_step(1, 2, 3), a_step(2, 1, 2, wave=1))
FAILING = a_plan(a_step(1, 1, 2), a_step(2, 1, 3, wave=1), a_step(3, 1, 2, wave=2))


class SchedulerKilledError(Exception):
    """A scheduler is killed while it works."""


@dataclass
class RoomSchedulers:
    """Two schedulers with one database, and two hosts in a real placement; searches find scripted plans."""

    database: Database
    placement: Placement
    bus: Bus
    clock: TurnedClock = field(default_factory=TurnedClock)
    movers: FakeMovers = field(default_factory=FakeMovers)
    schedulers: list[MovePlans] = field(default_factory=list)
    plans: list[RoomPlanned] = field(default_factory=list)  # that searches find; the last one again and again
    searched: list[tuple[PlanRoom, RoomPlanned]] = field(default_factory=list)
    held: set[str] = field(default_factory=set)  # holders on former hosts
    acts: int = 0  # of schedulers: edits and publications
    dies_at: int = -1  # the act before which a scheduler is killed
    leader: int = 0

    async def act(self) -> None:
        self.acts += 1
        if self.acts == self.dies_at:
            raise SchedulerKilledError

    async def publish(self, *messages: Message) -> None:
        await self.act()
        for message in messages:
            assert isinstance(message, MoveRequested)
            await self.movers._move(message)

    async def edit(self, asked: EditRequested) -> object:
        await self.act()
        edited = await self.bus.asker(topics.EDIT)(asked)
        assert isinstance(asked.edit, SetTraits)
        await self.act()  # it is killed before it stores that it has edited the host
        return edited

    async def allocations(self, asked: FindAllocations) -> AllocationsFound:
        held = self.held.intersection(asked.consumers)
        if not held:
            return AllocationsFound(consumers=(), generations={})
        raise Unavailable("the former guest is still there")

    async def find(self, asked: PlanRoom) -> RoomPlanned:
        """Return the next plan, or to a query that was answered before, the same one."""
        before = [answer for query, answer in self.searched if query == asked]
        answer = before[0] if before else self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]
        self.searched.append((asked, answer))
        return answer

    async def states(self) -> list[str]:
        return [state_of(await host_named(self.bus, f"host-{number}")) for number in (1, 2)]

    async def start(
        self, *plans: RoomPlanned, plan: str = PLAN, builds: int = 1, budget: int = 10, **facts: object
    ) -> str:
        """Start a plan; the first of `plans` is what the client has found."""
        self.plans = [*plans[1:]] or self.plans
        request = structs.replace(a_request(1), instances=tuple(uid(number) for number in range(builds)))
        query = PlanRoom(request=request, budget=budget)
        goal = RoomGoal(query=query, found=plans[0], targets=plans[0].targets, **facts)  # type: ignore[arg-type]
        parts = PlanParts(PlanningGoal(room=goal))
        started = PlanOfMoves(id=plan, parts=parts, most=4, plan="make_room", note="makes room")
        return (await self.schedulers[0].start(StartPlan(plan=started))).plan

    async def stands(self, plan: str = PLAN) -> PlanStands:
        return (await self.schedulers[0].find(FindPlans(plans=(plan,)))).plans[0]

    async def goal(self, plan: str = PLAN) -> RoomGoal:
        goal = room_of((await self.stands(plan)).plan)
        assert goal is not None
        return goal

    async def moves(self) -> list[MoveOfPlan]:
        return [each.move for each in await self.schedulers[0].moves_of(plans=(PLAN,))]

    async def step(self, seconds: float = 2.0) -> None:
        """Let the leader make a step. If it is killed there, the other one leads from now on."""
        self.clock.now += seconds
        acts, dies_at = self.acts, self.dies_at
        try:
            await self.schedulers[self.leader].step()
        except* SchedulerKilledError:
            pass
        if acts < dies_at <= self.acts:
            self.leader = 1 - self.leader
            self.clock.now += LEAD_SECONDS + AGAIN_SECONDS

    async def run(self, plan: str = PLAN, until_: Callable[[PlanStands], bool] = lambda _: False) -> RoomGoal:
        async def is_over() -> bool:
            await self.step()
            stands = await self.stands(plan)
            return bool(stands.ended) or until_(stands)

        await until(is_over)
        return await self.goal(plan)

    @property
    def asked(self) -> list[tuple[str, str]]:
        return [(asked.build, asked.wanted_host) for asked in self.movers.asked]


@asynccontextmanager
async def room_schedulers(database: Database) -> AsyncIterator[RoomSchedulers]:
    broker = LocalBroker()
    await migrate(database, *packages("scheduler"))
    async with AsyncExitStack() as stack:
        placement = await stack.enter_async_context(a_placement("sqlite+aiosqlite://"))
        assert await report(placement, *(a_report(number) for number in (1, 2))) == ["", ""]
        serves = serving(lambda: LocalTransport(broker), silent_placement(placement))
        site = RoomSchedulers(database, placement, await stack.enter_async_context(serves))
        site.movers.database = database
        site.movers.have(*(an_instance_there(number, 1) for number in (1, 2, 3)))
        edits = {"edit": site.edit, "edit_name": site.bus.asker(topics.EDIT_NAME)}
        queries = replace(queries_of(placement), allocations=site.allocations, **edits)  # type: ignore[arg-type]
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for _ in range(2):
            source, clock = IndexedSource(placement.memory), site.clock.clock
            plans = MovePlans(database, site.movers.find_moves, source, clock, site.publish)
            kind = RoomMaking(site.find, plans, queries, source, clock)
            plans.add_kind(kind)
            site.schedulers.append(plans)
            stack.callback(group.create_task(kind.searches.run()).cancel)
        yield site


@pytest.fixture
async def site(open_database: Callable[..., Database]) -> AsyncIterator[RoomSchedulers]:
    async with room_schedulers(open_database()) as site:
        yield site


async def test_a_plan_is_carried_out_wave_by_wave_on_closed_hosts(site: RoomSchedulers) -> None:
    await site.start(WAVES, WAVES, FITS)
    states: list[list[str]] = []
    site.movers.doing = lambda asked: site.movers.well(asked)
    await site.run(until_=lambda stands: bool(stands.under_way))
    states.append(await site.states())
    goal = await site.run()
    assert states == [[CLOSED, OPEN]] and await site.states() == [OPEN, OPEN]
    assert ((await site.stands()).code, [step.build for step in goal.moved]) == ("", [uid(1), uid(2)])
    assert site.asked == [(uid(1), uid(3, "a")), (uid(2), H2)]
    assert [(asked.roots, asked.budget) for asked, _ in site.searched] == [((H1,), 10), ((H1,), 8)]


def refusing(site: RoomSchedulers, *wanted: tuple[int, int]) -> None:
    """Refuse the moves of these instances to these hosts."""

    def doing(asked: MoveRequested) -> Sequence[Message]:
        refused = [(uid(build), uid(host, "a")) for build, host in wanted]
        is_refused = (asked.build, asked.wanted_host) in refused
        return [site.movers.refused(asked)] if is_refused else site.movers.well(asked)

    site.movers.doing = doing


async def test_the_moves_of_a_plan_that_is_given_up_are_undone_on_open_hosts(site: RoomSchedulers) -> None:
    refusing(site, (3, 2))
    await site.start(FAILING, FAILING, NONE)
    await site.run(until_=lambda stands: len(site.asked) == 4)
    assert await site.states() == [OPEN, OPEN]
    goal = await site.run()
    assert ((await site.stands()).code, goal.moved, [*goal.failed]) == ("destinations", (), [uid(3)])
    assert len(site.searched) == 2 + RETRIES
    assert site.asked[3:] == [(uid(2), H1), (uid(1), H1)]  # the last move is undone first


async def test_an_instance_that_moved_twice_is_moved_back_to_its_first_host(site: RoomSchedulers) -> None:
    first, second = a_plan(a_step(1, 1, 2), a_step(3, 1, 2)), a_plan(a_step(1, 2, 3))
    refusing(site, (3, 2))
    await site.start(first, first, second, NONE)
    goal = await site.run()
    assert (len(site.asked), site.asked[-1]) == (4, (uid(1), H1))
    assert (goal.moved, len(goal.undone)) == ((), 1)


async def test_hosts_of_another_plan_are_left_alone(site: RoomSchedulers) -> None:
    await site.start(WAVES, WAVES, FITS, plan=uid(8))
    await site.start(a_plan(a_step(3, 1, 2)), builds=2)
    await site.step()
    ends = {(await site.stands(plan)).code for plan in (PLAN, uid(8))}
    assert ends == {"", "taken"}


async def test_the_same_request_follows_the_running_plan(site: RoomSchedulers) -> None:
    assert await site.start(WAVES, WAVES, FITS) == PLAN
    assert await site.start(WAVES, plan=uid(8)) == PLAN
    assert await site.start(WAVES, plan=uid(8), builds=2) == uid(8)


async def test_an_operator_who_enables_a_host_ends_the_plan(site: RoomSchedulers) -> None:
    await site.start(WAVES, WAVES, FITS)
    await site.run(until_=lambda stands: bool(site.asked))
    await enabling("make_room")(site.bus, await host_named(site.bus, "host-1"))
    goal = await site.run()
    assert ((await site.stands()).code, site.asked[1:]) == ("opened", [(uid(1), H2)])
    assert (goal.moved, len(goal.undone), await site.states()) == ((), 1, [OPEN, OPEN])


async def test_a_plan_that_a_client_stops_opens_its_hosts_and_undoes_nothing(site: RoomSchedulers) -> None:
    await disabling("upgrade")(site.bus, await host_named(site.bus, "host-1"))
    await site.start(WAVES, WAVES, FITS)
    await site.run(until_=lambda stands: bool(site.asked))
    await site.schedulers[1].stop(StopPlan(plan=PLAN))
    goal = await site.run()
    assert ((await site.stands()).code, len(goal.moved), len(site.asked)) == ("stopped", 1, 1)
    assert await site.states() == ["disabled, because of upgrade", OPEN]


async def test_a_plan_whose_client_does_not_reserve_in_time_is_undone(site: RoomSchedulers) -> None:
    await site.start(WAVES, WAVES, FITS, reserve=60.0)
    await site.run(until_=lambda stands: bool(room_of(stands.plan).held_until))  # type: ignore[union-attr]
    await site.step(seconds=61.0)
    goal = await site.run()
    assert ((await site.stands()).code, goal.moved, len(goal.undone)) == ("unreserved", (), 2)
    assert await site.states() == [OPEN, OPEN]


@pytest.mark.parametrize("is_given_up", [False, True])
async def test_a_scheduler_killed_at_any_point_is_replaced(tmp_path: Path, is_given_up: bool) -> None:
    """Kill the scheduler before its first act, then in another run before its second, and so on. The plan
    ends as without a kill, and each of its moves has happened once.
    """
    ends, acts = list[tuple[object, ...]](), 0
    for dies_at in range(100):
        async with room_schedulers(Database(f"sqlite+aiosqlite:///{tmp_path}/{dies_at}")) as site:
            site.dies_at = dies_at
            refusing(site, *([(3, 2)] if is_given_up else []))
            await site.start(FAILING, FAILING, NONE if is_given_up else FITS)
            goal = await site.run()
            done = sorted((move.build, move.result) for move in await site.moves())
            hosts = [each.host for each in site.movers.builds.values()]
            ends.append(
                ((await site.stands()).code, goal.moved, goal.undone, done, hosts, await site.states())
            )
            assert len({asked.move for asked in site.movers.asked}) == len(site.movers.asked) == len(done)
            acts = site.acts
        if dies_at > acts:
            break
    assert acts >= 7 and ends == ends[:1] * len(ends)
    assert ends[0][-1] == [OPEN, OPEN]
