"""Lets requests without a host wait for free capacity, if they permit it."""

from collections.abc import Collection, Mapping, Sequence

from bus.messages import BuildCancelRequested, BuildRequested
from bus.queries import DecisionFound, FindWaiting, WaitingFound
from bus.vocabulary import Id
from features.waiting.answers import WaitingAnswers
from features.waiting.arrivals import Arrivals
from features.waiting.cancelling import CancelledWaits
from features.waiting.reasons import waits_of
from features.waiting.results import Evaluation
from features.waiting.store import WaitingStore
from scheduler_worker.extension import CancelResults, Fallback, Order, Placing, TakenOver


class WaitingFallback(Fallback):
    """The fallback that stores requests which may wait, and takes them over."""

    def __init__(
        self, store: WaitingStore, arrivals: Arrivals, answers: WaitingAnswers, cancelling: CancelledWaits
    ) -> None:
        self._store = store
        self._arrivals = arrivals
        self._answers = answers
        self._cancelling = cancelling

    def taken(self, request: Id) -> BuildRequested | None:
        entry = self._store.requests.get(request)
        return None if entry is None else entry.message

    async def receive(self, orders: Sequence[Order]) -> Sequence[TakenOver | Order]:
        return await self._arrivals.receive(orders)

    async def handle(self, orders: Sequence[Order], placing: Placing) -> Sequence[TakenOver | Order]:
        """Store the new requests among the orders; those that wait already stay in the queue."""
        answers: list[TakenOver | Order] = list(orders)
        new: list[int] = []
        for index, order in enumerate(orders):
            if _waits(order):
                if order.part(Evaluation) is not None:
                    answers[index] = TakenOver(waits_of(order))
                else:
                    new.append(index)
        for index, answer in zip(new, await self._arrivals.store([orders[at] for at in new]), strict=True):
            answers[index] = answer
        return answers

    def placed(self, orders: Sequence[Order]) -> None:
        if self._store.requests:
            self._store.on_placed(orders)

    async def cancel(self, asked: BuildCancelRequested) -> CancelResults | None:
        return await self._cancelling.cancel(asked)

    async def explain(self, id_: Id, found: DecisionFound) -> DecisionFound:
        return await self._answers.explain(id_, found)

    async def waiting(self, question: FindWaiting) -> WaitingFound:
        return await self._answers.waiting(question)

    async def projects_of(self, ids: Collection[Id]) -> Mapping[Id, str]:
        return await self._answers.projects_of(ids)


def _waits(order: Order) -> bool:
    """Return whether an order waits: not if enough of its instances have hosts, or another search follows."""
    verdict = order.verdict
    if not order.purpose.retires or not order.request.parts.waits.longest:
        return False
    if verdict.shortages or verdict.refusal is not None:
        return not order.has_enough and not order.is_searched_again
    return True
