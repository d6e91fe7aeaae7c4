"""A controller of rebalancing continues after failures of schedulers; only one runs at a time."""

from dataclasses import dataclass, field
from unittest.mock import AsyncMock, Mock

import pytest
from msgspec import structs

from berth import composition
from berth.operations import publishing
from bus import topics
from bus.errors import OperationRefused, Unavailable
from bus.local import LocalBroker, LocalTransport
from bus.resources import AllocationsFound, FindAllocations
from bus.worker import Worker, answers
from features.moves.moving import FollowedMoves, MoveListener
from features.moves.tests.support.fake_movers import FakeMovers, an_instance_there
from features.planning import rebalance_command as command
from features.planning import rebalancing
from features.planning.messages import (
    PLAN_BALANCE,
    SWITCH_BALANCING,
    BalanceMove,
    BalancePlanned,
    BalancingSwitched,
    PlanBalance,
    PlannedStep,
    SwitchBalancing,
)
from features.planning.planned_moves import PlannedMoves
from features.planning.rebalancing import BalanceController
from tests.support.buses import serving
from tests.support.command_line import CommandLine
from tests.support.ids import uid
from tests.support.virtual_time import in_virtual_time
from tests.support.visited_room import a_visited_room

STEP = PlannedStep(
    build=uid(1), kind="live", cell="c1", source=uid(1, "a"), source_host="host-1", destination=uid(2, "a"),
    destination_host="host-2",
)  # fmt: skip
PLAN = BalancePlanned(moves=(BalanceMove(steps=(STEP,), gain=0.3),))
GOES_ON, STOPPED = BalancingSwitched(stopped=False), BalancingSwitched(stopped=True)
TAKEN = BalancingSwitched(stopped=False, taken=True)


class SwitchingScheduler:
    """A scheduler with the stop switch of rebalancing. A controller counts as running until 1,800,000,060."""

    def __init__(self) -> None:
        self.stopped = False

    def worker(self) -> Worker:
        return Worker("scheduler", answers=[answers(SWITCH_BALANCING, self._switch)])

    async def _switch(self, asked: SwitchBalancing) -> BalancingSwitched:
        self.stopped = self.stopped if asked.stop is None else asked.stop
        since = 1_700_000_000.0 if self.stopped else 0.0
        return BalancingSwitched(
            stopped=self.stopped, since=since, controller_until=1_800_000_060.0,
            half_done=(STEP,) if self.stopped else (),
        )  # fmt: skip


async def test_an_operator_stops_and_permits_rebalancing_on_the_page_of_moves() -> None:
    scheduler = SwitchingScheduler()
    async with a_visited_room(scheduler.worker(), answered=(SWITCH_BALANCING.name,)) as room:
        page = await room.page("/moves")
        assert "A controller runs" in page and 'action="/rebalancing"' not in page
        assert (await room.send("/rebalancing", act="stop")).status_code == 403 and not scheduler.stopped
        await room.sign_in("admin")
        assert 'value="stop" id="stop-rebalancing"' in await room.page("/moves")
        assert (await room.send("/rebalancing", act="<x>")).status_code == 400
        assert (await room.send("/rebalancing", act="stop")).status_code == 303 and scheduler.stopped
        page = await room.page("/moves")
        assert "Stopped since 2023-11-14" in page and 'value="permit"' in page
        assert "is to be moved from host-2 back to host-1" in page
        assert (await room.send("/rebalancing", act="permit")).status_code == 303 and not scheduler.stopped
        room.clock.now += 100
        assert "has not reported since 2027-01-15" in await room.page("/moves")


@in_virtual_time
async def test_without_a_scheduler_the_page_of_moves_does_not_stop_rebalancing() -> None:
    async with a_visited_room() as alone:
        assert "Whether rebalancing is stopped is unknown" in await alone.page("/moves")
        await alone.sign_in("admin")
        assert (await alone.send("/rebalancing", act="stop")).status_code == 409


@dataclass
class FailingScheduler:
    """A scheduler whose answers a test gives: None is a failure, and the last answer is repeated."""

    states: list[BalancingSwitched | None]
    plans: list[BalancePlanned | None] = field(default_factory=lambda: [PLAN, BalancePlanned()])
    asked: list[SwitchBalancing] = field(default_factory=list)
    planned: int = 0

    def worker(self) -> Worker:
        return Worker(
            "scheduler",
            answers=[
                answers(SWITCH_BALANCING, self._switch),
                answers(PLAN_BALANCE, self._plan),
                answers(topics.ALLOCATIONS, self._allocations),
            ],
        )

    async def _switch(self, asked: SwitchBalancing) -> BalancingSwitched:
        self.asked.append(asked)
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state is None:
            raise Unavailable("the database is unreachable")
        return structs.replace(state, taken=state.taken and bool(asked.controller))

    async def _plan(self, asked: PlanBalance) -> BalancePlanned:
        self.planned += 1
        plan = self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]
        if plan is None:
            raise Unavailable("the database is unreachable")
        return plan

    async def _allocations(self, asked: FindAllocations) -> AllocationsFound:
        return AllocationsFound(consumers=(), generations={})


async def controlled(scheduler: FailingScheduler, movers: FakeMovers) -> bool:
    broker = LocalBroker()
    movers.have(an_instance_there(1, 1))
    async with serving(lambda: LocalTransport(broker), scheduler.worker(), movers.worker()) as bus:
        listener = MoveListener()
        return await BalanceController(bus, PlanBalance(), 2, 0.0, listener, lambda plan: None).run()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CALM_SECONDS", "STOP_SECONDS"):
        monkeypatch.setattr(rebalancing, name, 0.0)
    monkeypatch.setattr(publishing, "_REPEAT_SECONDS", 0.0)


async def test_a_controller_goes_on_when_schedulers_answer_again() -> None:
    scheduler, movers = (
        FailingScheduler([None, GOES_ON, None, None, GOES_ON, GOES_ON, GOES_ON, STOPPED]),
        FakeMovers(),
    )
    scheduler.plans.insert(0, None)
    await controlled(scheduler, movers)
    assert [(asked.build, asked.source) for asked in movers.asked] == [(uid(1), uid(1, "a"))]
    begin, *renewals, end = scheduler.asked[1:]
    assert begin.controller and not begin.renew and (end.seconds, end.renew) == (0.0, True)
    assert {(each.controller, each.renew) for each in renewals} == {(begin.controller, True)}


async def test_the_command_names_a_missing_answer_of_the_schedulers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = LocalBroker()
    monkeypatch.setattr(composition, "transport", lambda settings, name: LocalTransport(broker))
    run = CommandLine("rebalance", command, monkeypatch, capsys)
    async with serving(lambda: LocalTransport(broker), FailingScheduler([None]).worker()):
        with pytest.raises(Unavailable, match="database is unreachable"):
            await run()
    async with serving(lambda: LocalTransport(broker), FailingScheduler([STOPPED]).worker()):
        with pytest.raises(OperationRefused, match="rebalancing is stopped"):
            await run()


async def test_a_second_controller_is_refused() -> None:
    scheduler = FailingScheduler([TAKEN])
    assert not await controlled(scheduler, FakeMovers())
    assert scheduler.planned == 0


async def test_a_replaced_controller_begins_no_further_move() -> None:
    scheduler, movers = FailingScheduler([GOES_ON, TAKEN]), FakeMovers()
    assert not await controlled(scheduler, movers)
    assert (scheduler.planned, movers.asked) == (1, [])


async def test_a_move_that_cannot_be_requested_has_failed() -> None:
    followed = Mock(FollowedMoves, ask=AsyncMock(side_effect=Unavailable("no broker")), reply_to="me")
    moves = PlannedMoves(Mock(), followed, MoveListener(), 1, "rebalance", "")
    assert not await moves.exchange(PLAN.moves[0])
    assert moves.done.failed == {uid(1): "no broker"}
