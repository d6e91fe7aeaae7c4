"""The usage that the instances of a request would add to their project, compared with its quota."""

from collections import Counter
from collections.abc import Sequence

from msgspec import structs

from bus.decisions import Decision
from features.quotas.messages import INSTANCES, OVER_QUOTA, Quota, over_quota, quota_bound
from features.what_if.messages import InstancesPermitted, PlacedThere, WhatIfAnswered
from scheduler_worker.extension import Order, sections_of


def within_quota(answer: WhatIfAnswered, order: Order, quota: Quota) -> WhatIfAnswered:
    """Return the answer to a what-if question, extended by how many more instances the quota permits; or a
    refusal if the quota does not permit the answer's instances.
    """
    growth = _growth(order, sum(placed.instances for placed in answer.placed))
    bound = quota_bound(quota.effective, quota.used, _growth(order, 1))
    if order.request.at_least and bound is not None and order.needed <= bound.permits < growth[INSTANCES]:
        answer = structs.replace(answer, placed=_first(answer.placed, bound.permits))
        growth = _growth(order, bound.permits)
    if (over := over_quota(quota.project, quota.effective, quota.used, growth)) is not None:
        return WhatIfAnswered(fits=False, refusal=str(over), decision=Decision(code=OVER_QUOTA))
    used = Counter(quota.used) + growth
    bound = quota_bound(quota.effective, used, _growth(order, 1))
    permitted = None if bound is None else InstancesPermitted(permits=bound.permits, says=str(bound))
    return structs.replace(answer, permitted=permitted)


def _first(placed: Sequence[PlacedThere], instances: int) -> tuple[PlacedThere, ...]:
    """Return the hosts of the first `instances` instances."""
    found: list[PlacedThere] = []
    for there in placed:
        if instances > 0:
            found.append(structs.replace(there, instances=min(there.instances, instances)))
            instances -= there.instances
    return tuple(found)


def _growth(order: Order, instances: int) -> Counter[str]:
    """Return how much the usage of a project grows, by resource class, with this number of `instances` of the
    order's present flavor or, for a request with roles, with all of its instances.
    """
    growth = Counter({INSTANCES: instances})
    if order.request.parts.sections:
        for part in sections_of(order.request, order.current, order.instances):
            asked = part.alternative.asked
            growth.update({name: amount * len(part.instances) for name, amount in asked.items()})
    else:
        growth.update({name: amount * instances for name, amount in order.alternative.asked.items()})
    return growth
