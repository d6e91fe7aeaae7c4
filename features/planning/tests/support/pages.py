"""The form that stops rebalancings, for tests of all pages of the control room."""

from typing import Any

from bus.parts import PlanParts
from bus.worker import Worker, answers
from features.moves.messages import FIND_PLANS, FindPlans, PlanOfMoves, PlansFound, PlanStands
from features.planning.messages import Balancing, PlanningGoal
from tests.support.ids import uid

PAGES: dict[str, str] = {}
VALUES: dict[str, str] = {}
FORMS = {"/rebalancing": [("/rebalancing", "plan moves", {"act": "stop"})]}
IN_NO_CELL = ("/rebalancing",)
FORM_FIELDS: dict[str, dict[str, dict[str, str]]] = {"/rebalancing": {"act": {}}}


async def found(_: FindPlans) -> PlansFound:
    goal = PlanParts(PlanningGoal(balance=Balancing()))
    return PlansFound(plans=(PlanStands(plan=PlanOfMoves(id=uid(7), parts=goal, most=2)),))


CELLS = (Worker("rebalancing scheduler", answers=[answers(FIND_PLANS, found)]),)


def workers() -> list[Any]:
    return []
