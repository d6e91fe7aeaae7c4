"""Reads the hosts of the instances that the hints `same_host` and `different_host` of requests name."""

from collections.abc import Sequence

from scheduler_worker.core.narrowing import Narrowing
from scheduler_worker.core.order import Order
from scheduler_worker.dependencies import HeldAllocations, prepared_in_parts


class NamedInstances(Narrowing):
    """The narrowing for orders with the hint `same_host` or `different_host`."""

    def __init__(self, allocations: HeldAllocations) -> None:
        self._allocations = allocations

    def concerns(self, order: Order) -> bool:
        hints = order.request.hints
        return bool(hints.same_host or hints.different_host)

    async def prepare(self, orders: Sequence[Order], again: bool) -> Sequence[Order]:
        return orders if again else await prepared_in_parts(orders, self._prepared)

    async def _prepared(self, orders: Sequence[Order]) -> Sequence[Order]:
        hints = [order.request.hints for order in orders]
        roots = await self._allocations.hosts_of(
            [id_ for each in hints for id_ in (*each.same_host, *each.different_host)]
        )
        prepared = []
        for order, named in zip(orders, hints, strict=True):
            same, different = (
                frozenset([roots[id_] for id_ in ids if id_ in roots])
                for ids in (named.same_host, named.different_host)
            )
            fields = {"same": same if named.same_host else None, "different": different}
            prepared.append(order.with_alternatives(**fields))
        return prepared

    def watch(self, order: Order) -> tuple[object, frozenset[str]]:
        alternative = order.preferred
        return (alternative.same, alternative.different), alternative.different.union(alternative.same or ())
