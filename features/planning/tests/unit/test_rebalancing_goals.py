"""The goal of a rebalancing: that of the query, or what the placement profile prefers."""

import asyncio
from random import Random
from typing import Any

import pytest

from berth.kit.testing import FEATURES
from bus.clock import Clock
from features.planning.balance_planning import BalancePlanner
from features.planning.bench.rebalance import rebalanced
from features.planning.bench.room import FilledCloud, FilledPlacement, planner
from features.planning.messages import BalancePlanned, Goal, PlanBalance
from scheduler_worker.extension import PROFILES, ChoicePolicy
from scheduler_worker.testing import DemandCounts

pytestmark = pytest.mark.skipif(
    "fragmentation" not in FEATURES, reason="the feature that values free capacity is not listed"
)


async def planned(
    asked: PlanBalance, profile: str, *, values: bool = True, counted: bool = True
) -> BalancePlanned:
    """Return the plan for half-full hosts. `values`: whether the scheduler has a weigher that values free
    capacity; `counted`: whether it has counted requests.
    """
    chance, cloud = Random(1), FilledCloud()
    for number in range(20):
        cloud.add(number, chance, 0.98, kept=0.5)
    rooms, what_ifs = await planner(cloud, Clock(chance=chance), FilledPlacement(cloud), profile)
    scheduler: Any = rooms.scheduler
    if not values:
        scheduler.policy = ChoicePolicy.from_names(weighers=["ram"])
    if not counted:
        scheduler.demand = DemandCounts()
    return await BalancePlanner(what_ifs, rooms).answer(asked)


@pytest.mark.parametrize(
    ("profile", "asked", "goal"),
    [
        ("spread", "", "spread"),
        ("balanced", "", "usable"),
        ("pack", "", "usable"),
        ("balanced", "spread", "spread"),
        ("spread", "usable", "usable"),
    ],
)
async def test_the_goal_is_that_of_the_query_or_of_the_profile(profile: str, asked: Goal, goal: str) -> None:
    assert profile in PROFILES
    plan = await planned(PlanBalance(goal=asked, gain=0.02), profile)
    assert (plan.goal, plan.why, bool(plan.moves)) == (goal, "", True)


@pytest.mark.parametrize(("values", "why"), [(False, "no weigher"), (True, "no requests were counted")])
async def test_the_answer_says_why_it_is_not_known_what_is_usable(values: bool, why: str) -> None:
    plan = await planned(PlanBalance(goal="usable"), "spread", values=values, counted=not values)
    assert plan.why.startswith(why) and not plan.moves


async def test_without_a_weigher_that_values_free_capacity_hosts_are_spread() -> None:
    plan = await planned(PlanBalance(), "balanced", values=False)
    assert plan.goal == "spread" and plan.moves


async def test_moves_are_those_that_gain_most_in_all_cells() -> None:
    plan = await planned(PlanBalance(goal="usable", gain=0.02, budget=5), "balanced")
    assert len(plan.moves) == 5 and len({step.cell for step in plan.moves}) > 1
    assert {cell for cell in plan.before if plan.before[cell] < plan.after[cell]} == {
        step.cell for step in plan.moves
    }


def test_after_the_moves_more_fit_than_after_as_many_that_spread() -> None:
    def more(goal: Goal) -> float:
        found = asyncio.run(rebalanced(hosts=40, kept=0.5, seed=2, goal=goal, gain=0.02, budget=12))
        assert found.moves == 12
        return found.after - found.before

    assert more("usable") > 2 * max(more("spread"), 2.0)
