"""Limits the answers of capacity plans to what the quota of a project permits."""

from collections import Counter
from dataclasses import replace

from berth.kit import checked
from control_room.kit import PlannedFlavor
from features.capacity_plans.core.plan_form import Plan
from features.capacity_plans.core.planning import PlanAnswer, PlanSide
from features.capacity_plans.plan_additions import Asker, PlanAddition
from features.quotas.messages import INSTANCES, QUOTAS, FindQuotas, Quota, QuotaBound, quota_bound


async def complete(asker: Asker, answer: PlanAnswer, plan: Plan, project: str) -> PlanAnswer:
    if project:
        for quota in (await asker(QUOTAS)(checked(FindQuotas(project=project)))).quotas:
            answer = with_quota(answer, plan, quota)
    return answer


def with_quota(answer: PlanAnswer, plan: Plan, quota: Quota) -> PlanAnswer:
    """Return a copy of the answer to `plan`, with instances limited to what a project's quota permits."""

    def bound(growth: Counter[str], most: int) -> QuotaBound | None:
        found = quota_bound(quota.effective, quota.used, growth)
        return found if found is not None and found.permits < most else None

    def limited(side: PlanSide) -> PlanSide:
        pairs = zip(side.flavors, plan.mix, strict=True)
        found = [(fit, bound(_growth(flavor, 1), fit.fits)) for fit, flavor in pairs]
        flavors = [replace(fit, fits=its.permits, quota=its) if its else fit for fit, its in found]
        whole = bound(sum((_growth(flavor, flavor.parts) for flavor in plan.mix), Counter()), side.mixes)
        mixes = whole.permits if whole else side.mixes
        return replace(side, flavors=tuple(flavors), mixes=mixes, quota=whole)

    return replace(answer, now=limited(answer.now), then=limited(answer.then) if answer.then else None)


def _growth(flavor: PlannedFlavor, instances: int) -> Counter[str]:
    """Return the usage that this number of instances adds to a project's quota, by resource."""
    amounts = {name: amount * instances for name, amount in flavor.amounts.items()}
    return Counter({INSTANCES: instances, **amounts})


PART = PlanAddition(complete)
