"""Schedulers carry rebalancings out as durable plans, also if the scheduler that leads is killed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from berth.kit.testing import packages
from bus.errors import Unavailable
from bus.parts import PlanParts
from bus.resources import AllocationsFound, FindAllocations
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from features.moves.messages import FindPlans, MoveRequested, PlanOfMoves, PlanStands, StartPlan, StopPlan
from features.moves.plans import MovePlans
from features.moves.tests.support.fake_movers import FakeMovers, an_instance_there
from features.planning.messages import (
    BalancePlanned,
    Balancing,
    PlanBalance,
    PlannedStep,
    PlanningGoal,
    balancing_of,
)
from features.planning.rebalancing import CALM_SECONDS, FORGET_SECONDS, Rebalancing
from features.planning.tests.support.planned_steps import a_step
from placement_worker.testing import IndexedSource
from tests.support.ids import uid
from tests.support.placement_builders import a_placement
from tests.support.schedulers import queries_of
from tests.support.virtual_time import TurnedClock
from tests.support.waiting import until

PLAN = uid(7)


@dataclass
class RebalancingSchedulers:
    """Two schedulers with one database. Their moves end at once, and their searches find what a test sets."""

    database: Database
    movers: FakeMovers
    clock: TurnedClock
    schedulers: list[MovePlans] = field(default_factory=list)
    kinds: list[Rebalancing] = field(default_factory=list)
    loses: str = ""  # requests of such plans are lost: a scheduler is killed before it publishes them
    lost: int = 0
    found: Sequence[PlannedStep] | None = ()
    searched: list[PlanBalance] = field(default_factory=list)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)  # the searches

    async def publish(self, *messages: Message) -> None:
        for message in messages:
            assert isinstance(message, MoveRequested)
            if message.plan == self.loses:
                self.lost += 1
            else:
                await self.movers._move(message)

    async def find(self, asked: PlanBalance) -> BalancePlanned:
        self.searched.append(asked)
        await self.may_end.wait()
        if self.found is None:
            raise Unavailable("the broker is gone")
        return BalancePlanned(moves=tuple(self.found))

    async def start(self, goal: Balancing, plan: str = PLAN) -> str:
        plan_of_moves = PlanOfMoves(
            id=plan, parts=PlanParts(PlanningGoal(balance=goal)), most=2, plan="rebalance"
        )
        return (await self.schedulers[0].start(StartPlan(plan=plan_of_moves))).plan

    async def stands(self) -> PlanStands:
        [stands] = (await self.schedulers[0].find(FindPlans(plans=(PLAN,)))).plans
        return stands

    async def goal(self) -> Balancing:
        goal = balancing_of((await self.stands()).plan)
        assert goal is not None
        return goal

    async def step(self, scheduler: int = 0, seconds: float = 2.0) -> None:
        self.clock.now += seconds
        await self.schedulers[scheduler].step()

    async def end(self, scheduler: int = 0) -> Balancing:
        async def is_over() -> bool:
            await self.step(scheduler)
            return bool((await self.stands()).ended)

        await until(is_over)
        return await self.goal()

    @property
    def asked(self) -> list[str]:
        return [request.build for request in self.movers.asked]


@pytest.fixture
async def site(open_database: Callable[..., Database]) -> AsyncIterator[RebalancingSchedulers]:
    database = open_database()
    await migrate(database, *packages("scheduler"))
    site = RebalancingSchedulers(database, FakeMovers(database=database), TurnedClock())
    site.movers.have(*(an_instance_there(number, number) for number in (1, 2, 3)))
    site.may_end.set()

    async def allocations(asked: FindAllocations) -> AllocationsFound:
        return AllocationsFound(consumers=(), generations={})

    async with a_placement("sqlite+aiosqlite://") as placement, asyncio.TaskGroup() as group:
        queries = replace(queries_of(placement), allocations=allocations)
        running = []
        for _ in range(2):
            source, clock = IndexedSource(placement.memory), site.clock.clock
            plans = MovePlans(database, site.movers.find_moves, source, clock, site.publish)
            kind = Rebalancing(site.find, queries, clock, plans.wake)
            plans.add_kind(kind)
            site.schedulers.append(plans)
            site.kinds.append(kind)
            running.append(group.create_task(kind.searches.run()))
        yield site
        for task in running:
            task.cancel()


@pytest.mark.parametrize("loses", ["rebalance", "undo"])
async def test_a_scheduler_killed_while_it_moves_or_undoes_is_replaced(
    site: RebalancingSchedulers, loses: str
) -> None:
    refused = uid(2)
    site.movers.doing = lambda asked: (
        [site.movers.refused(asked)] if asked.build == refused else site.movers.well(asked)
    )
    site.loses = loses
    await site.start(Balancing(planned=(a_step(1, 1, 9), a_step(2, 2, 8))))

    async def is_killed() -> bool:
        await site.step(0)
        return bool(site.lost)

    await until(is_killed)
    site.loses = ""
    goal = await site.end(1)
    assert [request.plan for request in site.movers.asked] == ["rebalance", "rebalance", "undo"]
    assert ([step.build for step in goal.undone], [*goal.failed]) == ([uid(1)], [uid(2)])
    assert site.movers.builds[uid(1)].host == "host-1"
    assert (await site.stands()).code == "stay"


async def test_a_search_does_not_delay_other_plans(site: RebalancingSchedulers) -> None:
    site.may_end.clear()
    await site.start(Balancing(planned=(a_step(1, 1, 9),)))
    for _ in range(2):
        await site.step()
    await until(lambda: len(site.searched) == 1)
    await site.start(Balancing(planned=(a_step(2, 2, 8),)), uid(8))
    await site.step()
    assert site.asked == [uid(1), uid(2)]
    site.found = (a_step(3, 3, 7),)
    site.may_end.set()
    await site.end()
    assert {*site.asked} == {uid(1), uid(2), uid(3)}
    assert (site.searched[0].budget, {*site.searched[0].fixed}) == (9, {uid(1)})


async def test_no_further_move_begins_if_a_search_fails(site: RebalancingSchedulers) -> None:
    site.found = None
    await site.start(Balancing(planned=(a_step(1, 1, 9),)))
    goal = await site.end()
    assert (site.asked, len(goal.moved), len(site.searched)) == ([uid(1)], 1, 1)


async def test_a_standing_plan_waits_for_the_hold_time_and_ends_when_it_is_stopped(
    site: RebalancingSchedulers,
) -> None:
    assert await site.start(Balancing(keeps_on=True, plans=True, hold=3 * CALM_SECONDS)) == PLAN
    assert await site.start(Balancing(keeps_on=True, plans=True), uid(8)) == PLAN  # one at a time
    site.found = (a_step(1, 1, 9),)
    for count in range(1, 4):
        await site.step(seconds=CALM_SECONDS)
        await until(lambda: len(site.searched) == count)  # noqa: B023 - awaited here
        assert site.asked == []
        await site.step(seconds=0)
    await site.step(seconds=CALM_SECONDS)
    await until(lambda: len(site.searched) == 4)

    async def begins() -> bool:
        await site.step(seconds=0)
        return site.asked == [uid(1)]

    await until(begins)
    site.found = ()
    for _ in range(5):
        await site.step()
    assert not (await site.stands()).ended
    assert (await site.schedulers[1].stop(StopPlan(plan=PLAN))).stopped
    await site.end()
    stands = await site.stands()
    assert (stands.code, site.asked) == ("stopped", [uid(1)])
    assert await site.start(Balancing(keeps_on=True, plans=True), uid(8)) == uid(8)


async def test_a_standing_plan_forgets_old_moves(site: RebalancingSchedulers) -> None:
    await site.start(Balancing(keeps_on=True, planned=(a_step(1, 1, 9),)))
    for seconds, left in ((2.0, 1), (2.0, 1), (FORGET_SECONDS + 1, 0)):
        await site.step(seconds=seconds)
        assert len(await site.schedulers[0].moves_of(plans=(PLAN,))) == left
    assert not (await site.stands()).ended
