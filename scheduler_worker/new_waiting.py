"""New waiting requests: behind others of their class, or because no host fits now."""

from bus.context import StoredContext
from bus.decisions import Decision
from bus.vocabulary import MAX_CAUSE
from scheduler_worker.core.order import Order
from scheduler_worker.core.request import seconds_of
from scheduler_worker.store.parked import ParkedRequest
from scheduler_worker.waiting_requests import Parking


class Newcomers:
    """Makes of orders what is kept of them."""

    def __init__(self, parking: Parking) -> None:
        self._parking = parking

    def others_first(self, order: Order, now: float) -> bool:
        room = self._parking.room
        return bool(len(room)) and room.ahead(self._parking.kind(order), order.request.priority, now)

    def behind_others(self, order: Order, now: float, seen: int, story: StoredContext) -> ParkedRequest:
        """Return the waiting request without a search: the first of its class has no host."""
        first = self._parking.room.first(self._parking.kind(order))
        known = None if first is None else self._parking.parked.get(first.request)
        lacks = f": {known.lacks}" if known is not None else ""
        decision = known.decision if known is not None else Decision(code="line")
        return self.kept(
            order, now, seen, f"others that ask for the same came before it{lacks}", decision, story
        )

    def kept(
        self, order: Order, now: float, seen: int, why: str, decision: Decision, story: StoredContext
    ) -> ParkedRequest:
        kind = self._parking.kind(order)
        return ParkedRequest(
            message=order.request,
            kind=kind,
            since=now,
            until=now + seconds_of(order.request.wait),
            seen=seen,
            lacks=why[:MAX_CAUSE],
            wakes=self._parking.sight.wakes(kind),
            decision=decision,
            story=story,
            start=order.move,
        )
