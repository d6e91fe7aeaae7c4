"""`berth move rebalance --dry-run` shows what the moves are for, and what each gains."""

from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from berth.kit import BadSetting
from berth.kit.testing import commands_connect_by
from bus.local import LocalBroker, LocalTransport
from bus.worker import Worker, answers
from features.planning.messages import PLAN_BALANCE, BalancePlanned, PlanBalance
from features.planning.tests.support.planned_steps import a_step
from tests.support.buses import serving
from tests.support.command_line import CommandLine
from tests.support.ids import uid

Rebalance = Callable[..., Coroutine[Any, Any, str]]
MOVE = replace(a_step(1, 1, 2), gain=0.062)
USABLE = BalancePlanned(goal="usable", moves=(MOVE,), before={"c1": 1411.6}, after={"c1": 1412.4})
SPREAD = BalancePlanned(goal="spread", moves=(MOVE,), before={"c1": 0.2}, after={"c1": 0.15})


@dataclass
class ScriptedPlanner:
    """Answers queries for moves with a plan that a test sets."""

    plan: BalancePlanned = USABLE
    asked: list[PlanBalance] = field(default_factory=list)

    async def answer(self, asked: PlanBalance) -> BalancePlanned:
        self.asked.append(asked)
        return self.plan


@pytest.fixture
async def planner(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedPlanner]:
    broker, planner = LocalBroker(), ScriptedPlanner()
    commands_connect_by(lambda: LocalTransport(broker), monkeypatch)
    worker = Worker("planner", answers=[answers(PLAN_BALANCE, planner.answer)])
    async with serving(lambda: LocalTransport(broker), worker):
        yield planner


@pytest.fixture
def rebalance(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rebalance:
    return CommandLine("move rebalance", monkeypatch, capsys)


@pytest.mark.parametrize(
    ("plan", "lines"),
    [
        (USABLE, ["cell c1: 1,411.6 → 1,412.4 instances of a usual shape fit (mean)", "1 move"]),
        (
            replace(USABLE, moves=()),
            ["cell c1: 1,411.6 instances of a usual shape fit (mean)", "no move gains enough"],
        ),
        (BalancePlanned(goal="usable", why="no requests were counted"), ["no requests were counted"]),
        (SPREAD, ["cell c1: spread 20.0% → 15.0%", "1 move"]),
    ],
)
async def test_the_plan_says_what_it_improves(
    planner: ScriptedPlanner, rebalance: Rebalance, plan: BalancePlanned, lines: list[str]
) -> None:
    planner.plan = plan
    shown = (await rebalance("--dry-run")).splitlines()
    assert shown[: len(lines)] == lines
    step = f"  1. live    {uid(1)}  host-1 → host-2  ()  gain 6.2%"
    of_host = " of a host" if plan.goal == "usable" else ""
    assert shown[len(lines) :] == [step + of_host for _ in plan.moves]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ((), PlanBalance()),
        (("--goal", "usable", "--gain", "0.2"), PlanBalance(goal="usable", gain=0.2)),
        (("--class", "MEMORY_MB"), PlanBalance(goal="spread", resource_class="MEMORY_MB")),
        (("--above", "0.8"), PlanBalance(goal="spread", above=0.8)),
    ],
)
async def test_options_of_one_goal_choose_it(
    planner: ScriptedPlanner, rebalance: Rebalance, words: tuple[str, ...], asked: PlanBalance
) -> None:
    await rebalance("--dry-run", *words)
    assert planner.asked == [asked]


async def test_options_of_the_other_goal_are_refused(planner: ScriptedPlanner, rebalance: Rebalance) -> None:
    with pytest.raises(BadSetting, match="--above: only with --goal spread"):
        await rebalance("--dry-run", "--goal", "usable", "--above", "0.8")
    assert planner.asked == []
