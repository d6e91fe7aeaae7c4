"""The weights of projects, in proportion to which they take turns while requests are backlogged."""

from features.quotas.messages import QUOTAS, WEIGHT, FindQuotas
from scheduler_worker.extension import Scheduler

ASKED = QUOTAS


async def weight_of(project: str, scheduler: Scheduler) -> float:
    found = await scheduler.placement.ask(QUOTAS)(FindQuotas(weights=True))
    weights = {quota.project: float(quota.limits[WEIGHT]) for quota in found.quotas}
    return weights.get(project, weights.get("", 1.0))
