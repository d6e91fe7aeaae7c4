"""The usage that the instances of a request would add to their project."""

from collections import Counter

from bus.quotas import INSTANCES, OverQuota, Quota, over_quota
from scheduler_worker.core.order import Order
from scheduler_worker.core.roles import parts_of
from scheduler_worker.core.rule import Alternative


def quota_refusal(order: Order, fitting: Alternative, instances: int, quota: Quota) -> OverQuota | None:
    """Return a refusal if so many instances, of this flavor or of the roles, exceed the quota, else None."""
    growth = Counter({INSTANCES: instances})
    if order.request.roles:
        for part in parts_of(order.request, order.instances, 0):
            asked = order.alternatives[part.number].asked
            growth.update({name: amount * len(part.instances) for name, amount in asked.items()})
    else:
        growth.update({name: amount * instances for name, amount in fitting.asked.items()})
    return over_quota(quota.project, quota.effective, quota.used, growth)
