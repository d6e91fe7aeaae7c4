"""Lets requests without a host wait for free capacity, if they permit it."""

from collections.abc import Collection, Mapping, Sequence

from bus.messages import BuildCancelRequested
from bus.queries import DecisionFound, FindWaiting, WaitingFound
from bus.vocabulary import Id
from features.waiting.cancelling import CancelledWaits
from features.waiting.messages import wait_of
from features.waiting.owner import WaitingOwner
from features.waiting.reasons import waits_of
from scheduler_worker.extension import CancelResults, Fallback, Order, Scheduler, TakenOver


class WaitingFallback(Fallback):
    """The fallback that takes orders of requests that may wait; callers of `Scheduler.place` store them."""

    def __init__(self, owner: WaitingOwner, cancelling: CancelledWaits) -> None:
        self._owner = owner
        self._cancelling = cancelling

    async def handle(self, orders: Sequence[Order], placing: Scheduler) -> Sequence[TakenOver | Order]:
        return [TakenOver(waits_of(order)) if _waits(order) else order for order in orders]

    async def cancel(self, asked: BuildCancelRequested) -> CancelResults | None:
        return await self._cancelling.cancel(asked)

    async def explain(self, id_: Id, found: DecisionFound) -> DecisionFound:
        return await self._owner.explain(id_, found)

    async def waiting(self, question: FindWaiting) -> WaitingFound:
        return await self._owner.waiting(question)

    async def projects_of(self, ids: Collection[Id]) -> Mapping[Id, str]:
        return await self._owner.projects_of(ids)


def _waits(order: Order) -> bool:
    """Return whether an order waits: not if enough of its instances have hosts, or another search follows."""
    verdict = order.verdict
    if not order.purpose.retires or not wait_of(order.request.parts):
        return False
    if verdict.shortages or verdict.refusal is not None:
        return not order.has_enough and not order.is_searched_again
    return True
