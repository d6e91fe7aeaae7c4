"""The flavors of recent requests."""

from collections import Counter
from collections.abc import Sequence

from scheduler_worker.core.demand import Shape, shape_of
from scheduler_worker.core.order import Order
from scheduler_worker.core.rule import Alternative

MOST_FLAVORS = 20


class RecentFlavors:
    """The flavors of the latest requests, at most MOST_FLAVORS; flavors of one name and several sizes count
    separately.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int, int], Alternative] = {}

    def see(self, orders: Sequence[Order]) -> None:
        """Remember the flavors of these orders; beyond MOST_FLAVORS the oldest is forgotten."""
        known = self._known
        for order in orders:
            flavor = order.request.flavor
            key = flavor.name, flavor.vcpus, flavor.memory_mb, flavor.disk_gb
            if key not in known and order.attempts:
                if len(known) >= MOST_FLAVORS:
                    del known[next(iter(known))]
                known[key] = order.preferred

    def latest(self) -> Sequence[Alternative]:
        """Return an alternative of each remembered flavor, oldest first."""
        return list(self._known.values())


def demanded(orders: Sequence[Order]) -> list[tuple[Shape, int]]:
    """Return the shapes of the instances of orders; orders for equal requests are counted together."""
    alternatives: dict[int, Alternative] = {}
    instances = Counter[int]()
    for order in orders:
        if order.attempts:
            alternative = order.preferred
            alternatives[id(alternative)] = alternative
            instances[id(alternative)] += len(order.instances)
    return [(shape_of(alternatives[key].question), several) for key, several in instances.items()]
