"""Completes capacity plans by what joins know: capacity that is held, and limits of projects."""

from collections.abc import Callable
from typing import Any

from berth.features import modules
from bus.protocol import Ask
from bus.topics import Query
from features.capacity_plans.core.plan_form import Plan
from features.capacity_plans.core.planning import PlanAnswer

Asker = Callable[[Query[Any, Any]], Ask[Any, Any]]


async def completed(asker: Asker, answer: PlanAnswer, plan: Plan, project: str) -> PlanAnswer:
    """Return the answer to a plan with what all joins add; `asker` returns the function that sends a query.
    `project`: the instances are those of this project; empty: of no particular one.
    """
    for join in modules("added_to_plans"):
        answer = await join.added(asker, answer, plan, project)
    return answer
