"""Measures rebalancing by its goals: how many more instances of the usual shapes fit after some moves, and
how long the first answer to `scheduler.plan_balance` takes.

    python -m features.planning.bench.rebalance [--hosts 200,1000,10000] [--moves 50] [--kept 0.5] [--seeds 3]

Hosts are those of `bench.room`, filled, after which a part of the instances is deleted. All moves of a plan
are made before the next one is planned. The placement profile is `balanced`.
"""

import argparse
import asyncio
import random
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter, process_time

from msgspec import structs
from rich.console import Console
from rich.table import Table

from berth.services import settle_in
from bus.claims import Choice
from bus.clock import Clock
from features.planning.balance_planning import BalancePlanner
from features.planning.bench.room import FilledCloud, FilledPlacement, planner
from features.planning.messages import BalancePlanned, Goal, PlanBalance, PlannedStep

GOALS: tuple[tuple[Goal, float], ...] = (("spread", 0.02), ("usable", 0.02))  # with the least gain of a move


@dataclass(frozen=True)
class Rebalanced:
    """The result of a rebalancing. `before`, `after`: instances of the usual shapes that fit."""

    moves: int
    before: float
    after: float
    seconds: float  # until the first plan
    cpu: float


async def rebalanced(hosts: int, kept: float, seed: int, goal: Goal, gain: float, budget: int) -> Rebalanced:
    chance, cloud, clock = random.Random(seed), FilledCloud(), Clock(chance=random.Random(seed))
    for number in range(hosts):
        cloud.add(number, chance, 0.98, kept=kept)
    placement = FilledPlacement(cloud)
    rooms, what_ifs = await planner(cloud, clock, placement, "balanced")
    balance = BalancePlanner(what_ifs, rooms)
    settle_in()
    count = PlanBalance(goal="usable", budget=0)
    before = fitting(await balance.answer(count))
    started, cpu = perf_counter(), process_time()
    plan = await balance.answer(PlanBalance(goal=goal, gain=gain, budget=budget))
    seconds, cpu = perf_counter() - started, process_time() - cpu
    moved: list[str] = []
    while plan.moves:
        for step in plan.moves:
            make(step, cloud, placement)
            moved.append(step.build)
        asked = PlanBalance(goal=goal, gain=gain, budget=budget - len(moved), fixed=tuple(moved))
        plan = await balance.answer(asked)
    return Rebalanced(len(moved), before, fitting(await balance.answer(count)), seconds, cpu)


def fitting(plan: BalancePlanned) -> float:
    return sum(plan.before.values())


def make(step: PlannedStep, cloud: FilledCloud, placement: FilledPlacement) -> None:
    """Move an instance in the index, and in what placement and cells answer."""
    stands = cloud.builds[step.build]
    assert stands.chosen is not None
    [amounts] = stands.chosen.choice.allocations.values()
    placement.change({step.destination: amounts}, 1)
    placement.change({step.source: amounts}, -1)
    cloud.on[step.source].remove(step.build)
    cloud.on[step.destination].append(step.build)
    chosen = structs.replace(
        stands.chosen, root=step.destination, host=step.destination_host,
        choice=Choice({step.destination: amounts}),
    )  # fmt: skip
    cloud.builds[step.build] = structs.replace(stands, chosen=chosen, host=step.destination_host)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hosts", default="200,1000,10000")
    parser.add_argument("--moves", type=int, default=50)
    parser.add_argument("--kept", type=float, default=0.5)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    table = Table("hosts", "goal", "moves", "fit before", "more fit", "seconds", "processor seconds")
    for hosts in map(int, given.hosts.split(",")):
        for goal, gain in GOALS:
            found = [
                asyncio.run(rebalanced(hosts, given.kept, seed, goal, gain, given.moves))
                for seed in range(1, given.seeds + 1)
            ]
            table.add_row(
                str(hosts),
                goal,
                f"{fmean(each.moves for each in found):.0f}",
                f"{fmean(each.before for each in found):,.0f}",
                f"{fmean(each.after - each.before for each in found):+.1f}",
                f"{fmean(each.seconds for each in found):.2f}",
                f"{fmean(each.cpu for each in found):.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
