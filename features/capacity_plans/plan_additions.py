"""Completes capacity plans by what joins know: capacity that is held, and limits of projects."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from berth.kit import added
from bus.protocol import Ask
from bus.topics import Query
from features.capacity_plans.core.plan_form import Plan
from features.capacity_plans.core.planning import PlanAnswer

MODULE = "added_to_plans"  # of a join, with its `PlanAddition`
Asker = Callable[[Query[Any, Any]], Ask[Any, Any]]


@dataclass(frozen=True)
class PlanAddition:
    """The addition of a join to capacity plans: `complete` has the parameters of `completed`."""

    complete: Callable[[Asker, PlanAnswer, Plan, str], Awaitable[PlanAnswer]]


async def completed(asker: Asker, answer: PlanAnswer, plan: Plan, project: str) -> PlanAnswer:
    """Return the answer to a plan with the additions of all features that join it. `asker` returns the
    function that sends a query. `project`: the project of the planned instances; empty if they have none.
    """
    for addition in added(PlanAddition, MODULE):
        answer = await addition.complete(asker, answer, plan, project)
    return answer
