"""The rebalancings that go on, as clients read and stop them."""

from msgspec import structs

from bus.delivery.runner import Bus
from features.moves.messages import FIND_PLANS, STOP_PLAN, FindPlans, PlansFound, PlanStands, StopPlan
from features.planning.messages import balancing_of


def rebalancings_in(found: PlansFound) -> list[PlanStands]:
    """Return the plans that balance hosts."""
    return [stands for stands in found.plans if balancing_of(stands.plan) is not None]


async def running_rebalancings(bus: Bus) -> list[PlanStands]:
    """Ask for the plans that run and balance hosts."""
    return rebalancings_in(await bus.asker(FIND_PLANS)(FindPlans()))


async def stop_rebalancings(bus: Bus) -> list[PlanStands]:
    """Let all rebalancings begin no further move; return those that went on."""
    running = await running_rebalancings(bus)
    for stands in running:
        await bus.asker(STOP_PLAN)(StopPlan(plan=stands.plan.id))
    return [structs.replace(stands, stopping=True) for stands in running]
