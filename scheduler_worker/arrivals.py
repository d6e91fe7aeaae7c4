"""New build requests: placed immediately, or stored because they may wait for capacity."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import msgspec
from msgspec import structs

from bus.claims import Held, Retired
from bus.clock import Clock
from bus.context import story_of
from bus.messages import BuildRequested
from bus.sql.retrying import retrying
from bus.vocabulary import Id
from scheduler_worker.core.events import Begun, Fence, FenceAnswers, Park
from scheduler_worker.core.order import Order
from scheduler_worker.new_waiting import Newcomers
from scheduler_worker.placing import Scheduler, Verdict
from scheduler_worker.store import parked
from scheduler_worker.store.parked import ParkedRequest
from scheduler_worker.waiting_requests import Parking, decision_of, ended

_Add = Callable[[Sequence[ParkedRequest]], Awaitable[set[Id]]]


class Arrivals:
    """Places new requests. A waiting request is stored before anything is published for it."""

    def __init__(self, scheduler: Scheduler, parking: Parking, clock: Clock) -> None:
        self._scheduler = scheduler
        self._parking = parking
        self._clock = clock
        self._newcomers = Newcomers(parking)
        patiently: Callable[[_Add], _Add] = retrying(clock)
        self._add = patiently(self._add_once)

    async def place_many(self, requests: Sequence[BuildRequested]) -> list[Verdict]:
        """Return a verdict for each request: placed, waiting because no host fits or others of its class wait
        before it, or ended.
        """
        scheduler, room, newcomers = self._scheduler, self._parking.room, self._newcomers
        now, seen = self._clock.now(), scheduler.source.seen
        room.settle(self._clock.monotonic())
        mark, told_apart = room.mark, self._parking.told_apart
        begun = scheduler.begin(requests)
        orders = [order for order, _ in begun]
        verdicts: list[Verdict | None] = list(scheduler.put_off(orders))
        trying: list[int] = []
        waits: list[tuple[int, ParkedRequest, int | None]] = []
        for index, (order, event) in enumerate(begun):
            request = order.request
            if verdicts[index] is not None:
                continue
            if request.request in room:
                verdicts[index] = ()
            elif not event.refusal and request.wait and newcomers.others_first(order, now):
                waits.append(
                    (index, newcomers.behind_others(order, now, seen, story_of(requests[index])), None)
                )
            else:
                trying.append(index)
        ends = await scheduler.place([begun[index] for index in trying])
        for index, end in zip(trying, ends, strict=True):
            order = orders[index]
            if isinstance(end, Park):
                story = story_of(requests[index])
                kept = newcomers.kept(order, now, seen, end.why, decision_of(end), story)
                waits.append((index, kept, mark))
            else:
                verdicts[index] = scheduler.verdict(order.request.request, end)
        told = await self._park([(orders[index], kept, at) for index, kept, at in waits], told_apart)
        for (index, *_), said in zip(waits, told, strict=True):
            verdicts[index] = said
        await self._parking.keep_decisions(
            [
                (request, unplaceable)
                for request, verdict in zip(requests, verdicts, strict=True)
                for unplaceable in ended(verdict)
            ]
        )
        return [verdict if verdict is not None else () for verdict in verdicts]

    async def _park(
        self, waits: Sequence[tuple[Order, ParkedRequest, int | None]], told_apart: int
    ) -> list[Verdict]:
        """Store the requests, unless one is stored already, and return the messages for each.

        A repeated delivery whose instances hold a host or have ended is answered again and does not wait.
        The grouping key can change between evaluation and storage, so it is computed again before storing.
        """
        if not waits:
            return []
        before = await self._came_before([order for order, *_ in waits])
        keeping: list[tuple[ParkedRequest, int | None]] = []
        told: list[Verdict] = []
        for (order, kept, mark), elsewhere in zip(waits, before, strict=True):
            told.append(await self._tell_again(order, elsewhere) if elsewhere else ())
            left = tuple(instance for instance in order.instances if instance not in elsewhere)
            if left:
                message = msgspec.structs.replace(kept.message, instances=left) if elsewhere else kept.message
                keeping.append((replace(kept, message=message), mark))
        ours = await self._add([kept for kept, _ in keeping])
        for kept, mark in keeping:
            if kept.request not in ours or kept.request in self._parking.room:
                continue
            if told_apart == self._parking.told_apart:
                self._parking.enter(kept, mark)
            else:
                self._parking.take_over(kept)
        self._parking.call()
        return told

    async def _came_before(self, orders: Sequence[Order]) -> list[set[Id]]:
        """Return, for each order, its instances that hold allocations or have ended."""
        asked = [[Fence(instance, None, "") for instance in order.instances] for order in orders]
        found: list[set[Id]] = []
        for answer in await self._scheduler.ending.fence(asked):
            results = answer.results if isinstance(answer, FenceAnswers) else ()
            found.append({instance for instance, one in results if isinstance(one, Held | Retired)})
        return found

    async def _tell_again(self, order: Order, elsewhere: set[Id]) -> Verdict:
        instances = tuple(instance for instance in order.instances if instance in elsewhere)
        again = structs.replace(order, instances=instances, reason="it has ended before")
        [end] = await self._scheduler.place([(again, Begun())])
        return self._scheduler.verdict(order.request.request, end)

    async def _add_once(self, keeping: Sequence[ParkedRequest]) -> set[Id]:
        async with self._parking.database.write() as tx:
            await self._parking.live(tx)
            return await parked.add(tx, self._parking.name, keeping)
