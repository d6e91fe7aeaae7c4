"""Stores new requests that must wait for capacity: before their search, because equal requests wait already,
or after a search that found no host.

A request is stored before its message is acknowledged. If an earlier delivery of the message has placed or
ended some of its instances, only the others wait, and the results of these instances are published again.
"""

from collections.abc import Sequence
from dataclasses import replace

from msgspec import Struct

from bus.claims import Held, Retired
from bus.context import stored_context
from bus.repetitions import refused_repetition
from bus.vocabulary import Id, Message
from features.waiting.core.waiting_request import with_instances
from features.waiting.reasons import decision_of, waits_of
from features.waiting.store import Marked, Marks, WaitingStore
from features.waiting.tables.queued import QueuedRequest
from scheduler_worker.extension import Order, Placing, TakenOver, events


class ArrivedOrder(Struct, frozen=True):
    """The part of the order of a new request that may wait: the order before its search, and the time and
    the marks at which the search began.
    """

    begun: Order
    now: float
    seen: int
    mark: int | None  # None: all hosts are evaluated
    marks: Marks


Stored = TakenOver | Order
_TAKEN = TakenOver(None)


class Arrivals:
    """Stores new requests that must wait."""

    def __init__(self, scheduler: Placing, store: WaitingStore) -> None:
        self._scheduler = scheduler
        self._store = store

    async def receive(self, orders: Sequence[Order]) -> Sequence[Stored]:
        """Store the requests that equal waiting requests precede. Return the orders of the others; orders of
        requests that may wait get an `ArrivedOrder`.
        """
        store, clock, received = self._store, self._scheduler.clock, list[Stored](orders)
        store.queues.settle(clock.monotonic())
        now, seen = clock.now(), self._scheduler.source.seen
        mark, marks = store.queues.mark, store.marks
        behind: list[tuple[int, ArrivedOrder, QueuedRequest]] = []
        for index, order in enumerate(orders):
            verdict = order.verdict
            if verdict.invalid or verdict.reason or not order.request.parts.waits.longest:
                continue
            arrival = ArrivedOrder(order, now, seen, mark, marks)
            if store.is_behind(order, now):
                entry = store.behind(order, now, seen, stored_context(store.message_of(order)))
                behind.append((index, arrival, entry))
            else:
                received[index] = order.with_part(arrival)
        stored = await self._add([(arrival, entry, None) for _, arrival, entry in behind])
        for (index, *_), answer in zip(behind, stored, strict=True):
            received[index] = answer
        return received

    async def store(self, orders: Sequence[Order]) -> Sequence[Stored]:
        """Store the requests of orders for which a search found no host."""
        entries: list[tuple[ArrivedOrder, QueuedRequest, int | None]] = []
        for order in orders:
            arrival, waits = order.part(ArrivedOrder) or self._late(order), waits_of(order)
            begun, now, seen = arrival.begun, arrival.now, arrival.seen
            context, decision = stored_context(self._store.message_of(begun)), decision_of(waits)
            entry = self._store.waiting(begun, now, seen, waits.why, decision, context, waits.wakes_on)
            entries.append((arrival, entry, arrival.mark))
        return await self._add(entries)

    def _late(self, order: Order) -> ArrivedOrder:
        """Return the arrival of an order that was invalid when its batch began."""
        begun = self._scheduler.orders.begin(order.request, order.times.retried_for, order.purpose)
        return ArrivedOrder(
            begun, self._scheduler.clock.now(), self._scheduler.source.seen, None, self._store.marks
        )

    async def _add(self, waits: Sequence[tuple[ArrivedOrder, QueuedRequest, int | None]]) -> list[Stored]:
        """Store requests. Return for each whether it waits, or the order that ends its instances which have
        ended before, or which must not wait.
        """
        if not waits:
            return []
        answers: list[Stored] = []
        entries: list[tuple[int, Marked]] = []
        known = await self._known([arrival.begun for arrival, *_ in waits])
        for index, ((arrival, entry, mark), elsewhere) in enumerate(zip(waits, known, strict=True)):
            order = arrival.begun
            ended = tuple([instance for instance in order.instances if instance in elsewhere])
            left = tuple([instance for instance in order.instances if instance not in elsewhere])
            answers.append(order.ended_before(ended) if ended else _TAKEN)
            if left:
                if ended:  # fewer instances may fit on hosts that were too full for all
                    entry, mark = self._with_instances(order, entry, left), None
                entries.append((index, (entry, mark)))
        of_instances, ours = await self._store.add([entry for _, (entry, _) in entries])
        stored: dict[Marks, list[Marked]] = {}
        for index, (entry, mark) in entries:
            arrival = waits[index][0]
            other = entry.request if entry.subject is None else of_instances[entry.subject.instance]
            if other != entry.request:
                answers[index] = self._store.purpose_of(entry).refused_for(arrival.begun, other)
            else:
                stored.setdefault(arrival.marks, []).append((entry, mark))
        for marks, together in stored.items():
            self._store.enter_stored(together, ours, marks)
        others = {entry.request for _, (entry, _) in entries}.difference(ours)
        elsewhere_by_id = await self._store.stored_elsewhere(others) if others else {}
        for index, (entry, _) in entries:
            first = self._store.requests.get(entry.request) or elsewhere_by_id.get(entry.request)
            refused = None if first is None else self._conflict(first, entry)
            if refused is not None and answers[index] is _TAKEN:
                answers[index] = TakenOver(None, (refused,))
        return answers

    def _conflict(self, first: QueuedRequest, again: QueuedRequest) -> Message | None:
        if again.subject is None:
            return refused_repetition(first.message, again.message)
        return self._store.purpose_of(again).conflict(first, again)

    async def _known(self, orders: Sequence[Order]) -> list[set[Id]]:
        """Return the instances of each order that an earlier delivery has placed or ended."""
        asked = [[events.Fence(instance, None, "") for instance in order.instances] for order in orders]
        known: list[set[Id]] = []
        for answer in await self._scheduler.ending.fence(asked):
            results = answer.results if isinstance(answer, events.FenceAnswers) else ()
            known.append({instance for instance, result in results if isinstance(result, Held | Retired)})
        return known

    def _with_instances(self, order: Order, entry: QueuedRequest, left: tuple[Id, ...]) -> QueuedRequest:
        message, fitting = with_instances(entry.message, left), self._store.fitting
        kind = fitting.kind(message, order.alternatives, message.project)
        return replace(entry, message=message, kind=kind, wakes=fitting.wakes(kind))
