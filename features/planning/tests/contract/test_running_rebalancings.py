"""The rebalancings that run: shown and stopped on the page of moves, and by the command."""

import json
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from berth.kit import publishing
from berth.kit.testing import commands_connect_by
from bus.errors import Unavailable
from bus.local import LocalBroker, LocalTransport
from bus.parts import PlanParts
from bus.worker import Worker, answers
from features.moves.messages import (
    FIND_PLANS,
    STOP_PLAN,
    Emptying,
    FindPlans,
    PlanOfMoves,
    PlansFound,
    PlanStands,
    PlanStopAnswered,
    StopPlan,
)
from features.planning.messages import Balancing, PlanningGoal
from tests.support.buses import serving
from tests.support.command_line import CommandLine
from tests.support.ids import uid
from tests.support.virtual_time import in_virtual_time
from tests.support.visited_room import a_visited_room

ANSWERED = (FIND_PLANS.name, STOP_PLAN.name)


def a_plan(number: int, parts: PlanParts, total: int = 0, moved: int = 0) -> PlanStands:
    return PlanStands(plan=PlanOfMoves(id=uid(number), parts=parts, most=2), total=total, moved=moved)


class PlanningScheduler:
    """A scheduler with a standing plan, a rebalancing, and a drain."""

    def __init__(self) -> None:
        standing, once = (Balancing(keeps_on=keeps_on) for keeps_on in (True, False))
        self.plans = [
            a_plan(7, PlanParts(PlanningGoal(balance=standing)), moved=3),
            a_plan(8, PlanParts(PlanningGoal(balance=once)), total=5, moved=1),
            a_plan(9, PlanParts(Emptying(hosts=(), kind="live"))),
        ]
        self.answers = True

    @property
    def stopped(self) -> list[str]:
        return [stands.plan.id for stands in self.plans if stands.stopping]

    def worker(self) -> Worker:
        return Worker("scheduler", answers=[answers(FIND_PLANS, self._find), answers(STOP_PLAN, self._stop)])

    async def _find(self, asked: FindPlans) -> PlansFound:
        if not self.answers:
            raise Unavailable("the database is unreachable")
        return PlansFound(plans=tuple(self.plans))

    async def _stop(self, asked: StopPlan) -> PlanStopAnswered:
        self.plans = [
            replace(stands, stopping=stands.stopping or stands.plan.id == asked.plan) for stands in self.plans
        ]
        return PlanStopAnswered(stopped=True)


async def test_an_operator_stops_all_rebalancings_on_the_page_of_moves() -> None:
    scheduler = PlanningScheduler()
    async with a_visited_room(scheduler.worker(), answered=ANSWERED) as room:
        page = await room.page("/moves")
        assert "3 moved, none stays; it goes on until it is stopped" in page
        assert "1 moved, 4 not started, none stays." in page and 'action="/rebalancing"' not in page
        assert (await room.send("/rebalancing", act="stop")).status_code == 403 and not scheduler.stopped
        await room.sign_in("admin")
        assert 'value="stop" id="stop-rebalancing"' in await room.page("/moves")
        assert (await room.send("/rebalancing", act="<x>")).status_code == 400
        assert (await room.send("/rebalancing", act="stop")).status_code == 303
        assert scheduler.stopped == [uid(7), uid(8)]  # the drain goes on
        assert (await room.page("/moves")).count('<span class="tag warn">stopping</span>') == 2
        scheduler.plans = scheduler.plans[2:]
        room.clock.passed += 100
        assert "No rebalancing runs" in await room.page("/moves")


@in_virtual_time
async def test_without_a_scheduler_the_page_of_moves_does_not_stop_rebalancings() -> None:
    async with a_visited_room() as alone:
        assert "Whether a rebalancing runs is unknown" in await alone.page("/moves")
        await alone.sign_in("admin")
        assert (await alone.send("/rebalancing", act="stop")).status_code == 409


@pytest.fixture
def rebalance(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setattr(publishing, "_REPEAT_SECONDS", 0.0)
    return CommandLine("move rebalance", monkeypatch, capsys)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Callable[[], LocalTransport]:
    broker = LocalBroker()
    commands_connect_by(lambda: LocalTransport(broker), monkeypatch)
    return lambda: LocalTransport(broker)


async def test_the_command_shows_and_stops_all_rebalancings(
    broker: Callable[[], LocalTransport], rebalance: CommandLine
) -> None:
    scheduler = PlanningScheduler()
    async with serving(broker, scheduler.worker()):
        shown = (await rebalance("status")).splitlines()
        assert shown == [
            f"plan {uid(7)} rebalances until `berth move rebalance stop`: 3 moved, none stays",
            f"plan {uid(8)} rebalances: 1 moved, 4 not started, none stays",
        ]
        records = [json.loads(line) for line in (await rebalance("stop", "--json")).splitlines()]
        assert records == [
            {"plan": uid(7), "keeps_on": True, "stopping": True},
            {"plan": uid(8), "keeps_on": False, "stopping": True},
        ]
        assert scheduler.stopped == [uid(7), uid(8)]
        assert f"plan {uid(8)} begins no further move: 1 moved" in await rebalance("status")
        scheduler.plans = scheduler.plans[2:]
        assert await rebalance("stop") == "no rebalancing runs\n"
        assert scheduler.stopped == []


async def test_the_command_names_a_missing_answer_of_the_schedulers(
    broker: Callable[[], LocalTransport], rebalance: CommandLine
) -> None:
    scheduler = PlanningScheduler()
    scheduler.answers = False
    async with serving(broker, scheduler.worker()):
        with pytest.raises(Unavailable, match="database is unreachable"):
            await rebalance("stop")
