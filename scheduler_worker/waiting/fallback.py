"""Lets requests without a host wait for free capacity, if they permit it."""

from collections.abc import Mapping, Sequence

from bus.messages import BuildRequested
from bus.vocabulary import Id
from scheduler_worker.core.events import Taken
from scheduler_worker.core.order import Order
from scheduler_worker.extension import ClaimPart
from scheduler_worker.placing import Scheduler
from scheduler_worker.waiting.reasons import waits_of


class WaitingFallback:
    """The fallback that takes orders of requests that may wait; callers of `Scheduler.place` store them."""

    async def handle(self, orders: Sequence[Order], placing: Scheduler) -> Sequence[Taken | Order]:
        return [Taken(waits_of(order)) if _waits(order) else order for order in orders]

    async def parts_of(
        self, order: Order, instances: Sequence[Id], placing: Scheduler
    ) -> Mapping[Id, tuple[ClaimPart, ...]]:
        return {}

    def polls(self, request: BuildRequested) -> bool:
        return False


def _waits(order: Order) -> bool:
    """Return whether an order waits: not if enough of its instances have hosts, or another search follows."""
    verdict = order.verdict
    if not order.request.wait:
        return False
    if verdict.shortages or verdict.refusal is not None:
        return not order.has_enough and not order.is_searched_again
    return True
