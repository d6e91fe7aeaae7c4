"""Fallbacks: the extension point for orders without a host, and for requests that wait."""

from collections.abc import Collection, Mapping, Sequence

from bus.messages import BuildCancelled, BuildCancelRequested, BuildDeleteRequested, BuildRequested
from bus.queries import DecisionFound, FindWaiting, WaitingFound
from bus.vocabulary import Id
from scheduler_worker.core import events
from scheduler_worker.core.events import TakenOver
from scheduler_worker.core.order import Order
from scheduler_worker.core.rule import ClaimPart
from scheduler_worker.placing.surface import Placing

# What a fallback did with an order: it chose hosts, it handles the order from now on, or it passes the order,
# perhaps with a longer reason, to the next fallback.
FallbackAnswer = events.Chosen | TakenOver | Order


class Fallback:
    """A feature that helps orders without a host, in the sequence of the list of fallbacks. This class has no
    effect; features derive their fallbacks from it, and replace the methods that they need.
    """

    def taken(self, request: Id) -> BuildRequested | None:
        """Return a request that the fallback has taken over, with its instances that have not ended; None:
        it has not taken this request over.
        """
        return None

    async def receive(self, orders: Sequence[Order]) -> Sequence[TakenOver | Order]:
        """Return for each order of a new request the order, or `TakenOver` if the fallback takes it over
        without a search, because equal requests came before it. A request taken over is stored already.
        """
        return orders

    async def handle(self, orders: Sequence[Order], placing: Placing) -> Sequence[FallbackAnswer]:
        """Return for each order what the fallback did with it. The verdict of an order has its shortages or
        the refusal of its claim, or neither if all of its rounds are used up. Chosen hosts are claimed. If
        these claims are refused, the order is searched again, and the fallbacks are asked again. A request
        taken over is stored already. An order with a final reason in its verdict ends with this reason.
        """
        return orders

    def placed(self, orders: Sequence[Order]) -> None:
        """Count the orders of new requests of which instances got hosts, at the end of their batch."""

    async def parts_of(
        self, order: Order, instances: Sequence[Id], placing: Placing
    ) -> Mapping[Id, tuple[ClaimPart, ...]]:
        """Return what the messages must carry about instances that an earlier delivery placed."""
        return {}

    def polls(self, request: BuildRequested) -> bool:
        """Return whether a waiting request must be tried again from time to time, because this fallback may
        find hosts for it that no change of placement announces.
        """
        return False

    async def cancel(
        self, asked: BuildCancelRequested
    ) -> Sequence[BuildCancelled | BuildDeleteRequested] | None:
        """Cancel a build or request that the fallback has taken over, and return the answer, and orders to
        delete builds that have a host already. Return None, without effect, if the fallback has none.
        """
        return None

    async def explain(self, id_: Id, found: DecisionFound) -> DecisionFound:
        """Return why a build or request has no host: `found` is the stored decision, which the fallback may
        extend or, if it has taken the request over, replace.
        """
        return found

    async def waiting(self, question: FindWaiting) -> WaitingFound | None:
        """Return the requests that wait in this fallback, or None if requests never wait in it."""
        return None

    async def projects_of(self, ids: Collection[Id]) -> Mapping[Id, str]:
        """Return, by id, the project of each build or request that the fallback has taken over."""
        return {}
