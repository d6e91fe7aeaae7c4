"""Evaluates waiting builds, and ends those that get hosts, expire or fail."""

from collections.abc import Sequence

from msgspec import structs

from bus.decisions import Decision
from bus.messages import BuildPlaced
from bus.vocabulary import Message
from features.waiting.messages import CRASHED
from features.waiting.reasons import Waits, decision_of, expired_order
from features.waiting.results import (
    PATIENCE,
    SOON,
    Ended,
    Evaluated,
    Evaluation,
    RetryLater,
    StillWaiting,
    UndoPlaced,
    Woken,
)
from features.waiting.store import WaitingStore
from features.waiting.tables.queued import QueuedRequest
from scheduler_worker.extension import Order, Placing, Verdict, events, log


class WaitingBuilds:
    """Evaluates waiting builds."""

    def __init__(self, scheduler: Placing, store: WaitingStore) -> None:
        self.scheduler = scheduler
        self.store = store
        self.undo_placed: UndoPlaced = scheduler.ending.undo_placed

    def polls(self, entry: QueuedRequest) -> bool:
        """Return whether a request must be tried again although no event says that it fits."""
        return entry.subject is None and self.scheduler.polls(entry.message)

    def is_placed(self, message: Message) -> bool:
        return isinstance(message, BuildPlaced)

    async def evaluate(self, woken: Sequence[Woken]) -> Sequence[Evaluated]:
        """Try to place woken requests; return the result of each."""
        orders = self.scheduler.begin([item.queued.message for item in woken], again=True)
        ends = await self.scheduler.place(self._narrowed(woken, orders))
        return await self._results([item.queued for item in woken], ends)

    async def claimed(self, entries: Sequence[QueuedRequest]) -> list[tuple[QueuedRequest, Evaluated]]:
        """Return the results of the waiting builds that already hold hosts for all of their instances."""
        ending = self.scheduler.ending
        held = await ending.held(instance for entry in entries for instance in entry.message.instances)
        found = [entry for entry in entries if held.keys() >= {*entry.message.instances}]
        orders = self.scheduler.begin([entry.message for entry in found], again=True)
        again = [
            _evaluated(order, entry).ended_before(order.instances)
            for entry, order in zip(found, orders, strict=True)
        ]
        ends = await self.scheduler.place(again) if again else []
        return list(zip(found, await self._results(found, ends), strict=True))

    async def end(self, expired: Sequence[Woken]) -> Sequence[Evaluated]:
        """Try to place expired requests once more; return the final result of each."""
        orders = self.scheduler.begin([item.queued.message for item in expired], again=True)
        ends = await self.scheduler.place(self._narrowed(expired, orders))
        last = [
            (index, expired_order(orders[index], expired[index].queued, end.state))
            for index, end in enumerate(ends)
            if isinstance(end, events.TakenOver)
        ]
        fenced = await self.scheduler.place([order for _, order in last])
        for (index, _), end in zip(last, fenced, strict=True):
            ends[index] = end
        return await self._results([item.queued for item in expired], ends)

    async def fail(self, woken: Sequence[Woken], why: str) -> Sequence[Evaluated]:
        """End waiting requests without an evaluation; builds that hold hosts already are published."""
        entries = [item.queued for item in woken]
        orders = self._narrowed(woken, self.scheduler.begin([entry.message for entry in entries], again=True))
        failed = Verdict(reason=why, decision=Decision(code=CRASHED))
        ending = [
            structs.replace(order, verdict=structs.replace(failed, lacks_remedies=bool(order.attempts)))
            for order in orders
        ]
        return await self._results(entries, await self.scheduler.place(ending))

    def _narrowed(self, woken: Sequence[Woken], orders: Sequence[Order]) -> list[Order]:
        limit_of = self.store.held.limit_of
        return [
            _evaluated(order.limited(limit_of(item.excluding, order.request.project)), item.queued)
            for item, order in zip(woken, orders, strict=True)
        ]

    async def _results(self, entries: Sequence[QueuedRequest], ends: Sequence[events.End]) -> list[Evaluated]:
        results = [self._result(request, end) for request, end in zip(entries, ends, strict=True)]
        pairs = zip(entries, results, strict=True)
        ended = [(entry.message, result.messages) for entry, result in pairs if isinstance(result, Ended)]
        await self.store.refusals.add_builds(ended)
        return results

    def _result(self, entry: QueuedRequest, end: events.End) -> Evaluated:
        match end:
            case events.Publish(messages=messages):
                return Ended(messages)
            case events.TakenOver(state=Waits() as waits) if waits.is_explained:
                return StillWaiting(waits.why, decision_of(waits), wakes_on=waits.wakes_on)
            case events.TakenOver():  # placement refused the claim; the index may not show the reason yet
                return RetryLater(SOON)
            case events.ComeAgain(least=least, most=most):
                return RetryLater(self.scheduler.clock.chance.uniform(least, most))
            case events.DeadLetterRequest(why=why):
                log.error("request %s: %s", entry.request, why)
                return RetryLater(60.0)
            case _:
                return RetryLater(PATIENCE)


def _evaluated(order: Order, entry: QueuedRequest) -> Order:
    """Return the order of a waiting request, with the time since when it waits."""
    times = structs.replace(order.times, waiting_since=entry.since)
    return structs.replace(order, times=times).with_part(Evaluation())
