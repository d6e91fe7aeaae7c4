"""New and waiting builds: placed together, stored if they may wait for capacity, ended if they expire."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
from msgspec import structs

from bus.claims import Held, Retired
from bus.context import story_of
from bus.decisions import Decision
from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable
from bus.vocabulary import MAX_CAUSE, Id, Message
from scheduler_worker.core import events
from scheduler_worker.core.order import Begins, Order
from scheduler_worker.dependencies import log
from scheduler_worker.orders import put_off
from scheduler_worker.placing import Scheduler, Verdict
from scheduler_worker.store.parked import ParkedRequest
from scheduler_worker.waiting.hosts import beside
from scheduler_worker.waiting.queue import PATIENCE, SOON, Ended, Evaluated, RetryLater, StillWaiting, Woken
from scheduler_worker.waiting.store import Marked, WaitingStore


class WaitingBuilds:
    """New builds, which are placed, stored to wait or ended, and the evaluation of waiting builds. A waiting
    request is stored before anything is published for it.
    """

    def __init__(self, scheduler: Scheduler, store: WaitingStore) -> None:
        self._scheduler = scheduler
        self._store = store

    async def place_many(self, requests: Sequence[BuildRequested]) -> list[Verdict]:
        """Return a verdict for each request: placed, waiting, or ended."""
        scheduler, store = self._scheduler, self._store
        now, seen = self._scheduler.clock.now(), scheduler.source.seen
        store.room.settle(self._scheduler.clock.monotonic())
        mark, regroupings = store.room.mark, store.regroupings
        begun = scheduler.begin(requests)
        orders = [order for order, _ in begun]
        verdicts: list[Verdict | None] = list(put_off(orders, self._scheduler.clock))
        trying: list[int] = []
        waits: list[tuple[int, ParkedRequest, int | None]] = []
        for index, (order, event) in enumerate(begun):
            request = order.request
            if verdicts[index] is not None:
                continue
            if request.request in store.room:
                verdicts[index] = ()
            elif not event.refusal and request.wait and store.is_behind(order, now):
                waits.append((index, store.behind(order, now, seen, story_of(requests[index])), None))
            else:
                trying.append(index)
        ends = await scheduler.place([begun[index] for index in trying])
        for index, end in zip(trying, ends, strict=True):
            order = orders[index]
            if isinstance(end, events.Park):
                story = story_of(requests[index])
                kept = store.waiting(order, now, seen, end.why, decision_of(end), story)
                waits.append((index, kept, mark))
            else:
                verdicts[index] = scheduler.verdict(order.request.request, end)
        again = await self._store_waiting(
            [(orders[index], kept, at) for index, kept, at in waits], regroupings
        )
        for (index, *_), verdict in zip(waits, again, strict=True):
            verdicts[index] = verdict
        await store.keep_decisions(
            [
                (request, message)
                for request, verdict in zip(requests, verdicts, strict=True)
                for message in _unplaceable(verdict if isinstance(verdict, list | tuple) else ())
            ]
        )
        return [verdict if verdict is not None else () for verdict in verdicts]

    async def _store_waiting(
        self, waits: Sequence[tuple[Order, ParkedRequest, int | None]], regroupings: int
    ) -> list[Verdict]:
        """Store requests that wait; return the messages for each: redelivered requests are answered again."""
        if not waits:
            return []
        before = await self._came_before([order for order, *_ in waits])
        keeping: list[Marked] = []
        again: list[Verdict] = []
        for (order, kept, mark), elsewhere in zip(waits, before, strict=True):
            again.append(await self._answer_again(order, elsewhere) if elsewhere else ())
            left = tuple(instance for instance in order.instances if instance not in elsewhere)
            if left:
                message = msgspec.structs.replace(kept.message, instances=left) if elsewhere else kept.message
                keeping.append((replace(kept, message=message), mark))
        _, ours = await self._store.add([kept for kept, _ in keeping])
        self._store.enter_stored(keeping, ours, regroupings)
        return again

    async def _came_before(self, orders: Sequence[Order]) -> list[set[Id]]:
        asked = [[events.Fence(instance, None, "") for instance in order.instances] for order in orders]
        found: list[set[Id]] = []
        for answer in await self._scheduler.ending.fence(asked):
            results = answer.results if isinstance(answer, events.FenceAnswers) else ()
            found.append({instance for instance, one in results if isinstance(one, Held | Retired)})
        return found

    async def _answer_again(self, order: Order, elsewhere: set[Id]) -> Verdict:
        instances = tuple(instance for instance in order.instances if instance in elsewhere)
        again = structs.replace(order, instances=instances, reason="it has ended before")
        [end] = await self._scheduler.place([(again, events.Begun())])
        return self._scheduler.verdict(order.request.request, end)

    async def evaluate(self, woken: Sequence[Woken]) -> Sequence[Evaluated]:
        ends = await self._scheduler.place(self._narrowed(woken, self._begun(woken)))
        return await self._results([one.kept for one in woken], ends)

    async def end(self, expired: Sequence[Woken]) -> Sequence[Evaluated]:
        begun = self._begun(expired)
        ends = await self._scheduler.place(self._narrowed(expired, begun))
        last = [
            (index, (given_up(begun[index][0], expired[index].kept, end), events.Begun()))
            for index, end in enumerate(ends)
            if isinstance(end, events.Park)
        ]
        fenced = await self._scheduler.place([order for _, order in last])
        for (index, _), end in zip(last, fenced, strict=True):
            ends[index] = end
        return await self._results([one.kept for one in expired], ends)

    async def take_back(self, message: Message) -> Message | None:
        assert isinstance(message, BuildPlaced)
        return await self._scheduler.ending.take_back(message)

    def _begun(self, woken: Sequence[Woken]) -> list[Begins]:
        return self._scheduler.begin([one.kept.message for one in woken])

    def _narrowed(self, woken: Sequence[Woken], begun: Sequence[Begins]) -> list[Begins]:
        return [
            (beside(order, one.excluding, self._store.why_reserved), event)
            for one, (order, event) in zip(woken, begun, strict=True)
        ]

    async def _results(self, kept: Sequence[ParkedRequest], ends: Sequence[events.End]) -> list[Evaluated]:
        results = [self._result(one, end) for one, end in zip(kept, ends, strict=True)]
        await self._store.keep_decisions(
            [
                (one.message, message)
                for one, result in zip(kept, results, strict=True)
                for message in _unplaceable(result.messages if isinstance(result, Ended) else ())
            ]
        )
        return results

    def _result(self, kept: ParkedRequest, end: events.End) -> Evaluated:
        match end:
            case events.SayAll(messages=messages):
                return Ended(messages)
            case events.Park(shorts=shorts, why=why) if shorts:
                return StillWaiting(why, decision_of(end))
            case events.Park():  # placement refused the claim, for a reason that the replica may not show yet
                return RetryLater(SOON)
            case events.ComeAgain(least=least, most=most):
                return RetryLater(self._scheduler.clock.chance.uniform(least, most))
            case events.DeadLetterRequest(why=why):
                log.error("request %s: %s", kept.request, why)
                return RetryLater(60.0)
            case _:
                return RetryLater(PATIENCE)


def given_up(order: Order, kept: ParkedRequest, last: events.Park) -> Order:
    """Return the order of an expired request, ready to end after its last evaluation."""
    lacks = last.why if last.shorts else kept.lacks
    decision = decision_of(last) if last.shorts else kept.decision
    return structs.replace(
        order,
        reason=waited_for(kept, lacks),
        decision=msgspec.structs.replace(decision, code="waited"),
        unexplained=True,
    )


def waited_for(kept: ParkedRequest, lacks: str) -> str:
    return f"it has waited {kept.message.wait}, as it wished: {lacks}"[:MAX_CAUSE]


def decision_of(end: events.Park) -> Decision:
    return end.shorts[0].decision(()) if end.shorts else Decision(code="refused")


def _unplaceable(messages: Sequence[object]) -> list[BuildUnplaceable]:
    return [one for one in messages if isinstance(one, BuildUnplaceable)]
