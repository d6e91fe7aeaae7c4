"""Hosts with their inventories and usage, read from placement's trees; as values and as arrays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bus.host_health import DISABLED, FORCED_DOWN
from bus.replication import KnownProvider, KnownTree, TreesFound
from bus.resources import Provider
from bus.vocabulary import MAX_CAPACITY

MOST_FIT = 9999


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStock:
    """Inventory and usage of one class of one provider."""

    resource_class: str
    free: int
    capacity: int
    min_unit: int = 1
    max_unit: int = MAX_CAPACITY
    step: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHost:
    root: str
    name: str
    cell: str = ""
    zone: str = ""
    closed: bool = False
    traits: frozenset[str] = frozenset()  # of all its providers
    stocks: tuple[HostStock, ...] = ()
    new: bool = False  # added by a plan

    @property
    def layout(self) -> object:
        """Return the properties of a host that its position and frame in the heat map depend on."""
        amounts = [(stock.resource_class, stock.capacity, stock.max_unit) for stock in self.stocks]
        return self.name, self.cell, self.zone, amounts

    def amounts(self, resource_class: str) -> tuple[int, int]:
        """Return the capacity and the usage of each resource class over the whole tree of a host."""
        found = [stock for stock in self.stocks if stock.resource_class == resource_class]
        return sum(stock.capacity for stock in found), sum(stock.capacity - stock.free for stock in found)

    def fits(self, flavor: Mapping[str, int]) -> int:
        """Return how many more instances of a flavor fit by amounts, each class taken from one provider."""
        if self.closed or not flavor:
            return 0
        fitting = dict.fromkeys(flavor, 0)
        for stock in self.stocks:
            amount = flavor.get(stock.resource_class)
            if amount is not None and amount <= stock.max_unit:
                fitting[stock.resource_class] = max(fitting[stock.resource_class], stock.free // amount)
        return min(*fitting.values(), MOST_FIT)


def host_of_tree(
    page: TreesFound, tree: KnownTree, zones: Mapping[str, str], rest: Sequence[TreesFound] = ()
) -> KnownHost | None:
    """Return the host of a tree, or None if it was deleted or no agent reports it.

    `zones` are by aggregate; `rest` are pages with the tree's further providers.
    """
    if not tree.providers or not page.owners[tree.owner][1]:
        return None
    top, (cell, _, zone) = tree.providers[0], page.owners[tree.owner]
    marks = page.traits[top.traits]
    every = [(page, provider) for provider in tree.providers]
    every += [(other, provider) for other in rest for provider in other.trees[0].providers]
    return KnownHost(
        root=tree.root or top.id,
        name=tree.host or top.name,
        cell=cell,
        zone=next((zones[id_] for id_ in page.aggregates[top.aggregates] if id_ in zones), zone),
        closed=DISABLED in marks or FORCED_DOWN in marks,
        traits=frozenset(trait for where, provider in every for trait in where.traits[provider.traits]),
        stocks=tuple(stock for where, provider in every for stock in _stocks(where, provider)),
    )


def _stocks(page: TreesFound, provider: KnownProvider) -> list[HostStock]:
    inventories = [page.inventories[at] for at in page.stocks[provider.stock]]
    return [
        HostStock(
            resource_class=inventory.resource_class,
            free=inventory.capacity - used,
            capacity=inventory.capacity,
            min_unit=inventory.min_unit,
            max_unit=inventory.max_unit,
            step=inventory.step_size,
        )
        for inventory, used in zip(inventories, provider.used, strict=False)
    ]


MOST_DEPTH = 6  # that the page indents


def rows(tree: Sequence[Provider]) -> list[tuple[int, Provider]]:
    """Return the providers of a tree in its order, by name within a parent, each with its depth."""
    below: dict[str | None, list[Provider]] = {}
    known = {provider.id for provider in tree}
    for provider in sorted(tree, key=lambda provider: provider.name, reverse=True):
        below.setdefault(provider.parent if provider.parent in known else None, []).append(provider)
    found = []
    left = [(0, provider) for provider in below.get(None, ())]
    while left:  # a tree may be deeper than Python's stack
        depth, provider = left.pop()
        found.append((min(depth, MOST_DEPTH), provider))
        left += [(depth + 1, child) for child in below.get(provider.id, ())]
    return found


Counts = NDArray[np.int64]


class StockColumns:
    """The inventories of one resource class as arrays, in the order of their hosts."""

    def __init__(self, hosts: Sequence[KnownHost], resource_class: str) -> None:
        found = [
            (at, stock)
            for at, host in enumerate(hosts)
            for stock in host.stocks
            if stock.resource_class == resource_class
        ]

        def column(read: Callable[[HostStock], int]) -> Counts:
            # bounded, so that sums over all hosts fit into 64 bits
            return np.array([max(0, min(read(stock), MAX_CAPACITY)) for _, stock in found], dtype=np.int64)

        self.host = np.array([at for at, _ in found], dtype=np.int64)
        self.free = column(lambda one: one.free)
        self._most = column(lambda one: one.max_unit)
        self._least = column(lambda one: one.min_unit)
        self._step = np.maximum(column(lambda one: one.step), 1)
        numbers = np.arange(len(hosts))
        self._begins = np.searchsorted(self.host, numbers, side="left")
        self._ends = np.searchsorted(self.host, numbers, side="right")

    def by_host(self, values: Counts) -> Counts:
        """Return the sums of values over the inventories of each host."""
        sums = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(values)))
        found: Counts = sums[self._ends] - sums[self._begins]
        return found

    def gives(self, amount: int) -> NDArray[np.bool_]:
        """Return which inventories can give this amount to one consumer."""
        gives: NDArray[np.bool_] = (
            (amount <= self._most) & (amount >= self._least) & (amount % self._step == 0)
        )
        return gives

    def pieces(self, amount: int, free: Counts) -> Counts:
        """Return how many times each inventory has this amount, if it can give the amount to one consumer."""
        pieces: Counts = np.where(self.gives(amount), free // amount, 0)
        return pieces

    def take(self, free: Counts, amount: int, pieces: Counts, here: Counts) -> None:
        """Subtract this amount, `here` times, from each host, from its inventories in their order."""
        before = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(pieces)))
        on_host = before[:-1] - before[self._begins][self.host]
        free -= np.clip(here[self.host] - on_host, 0, pieces) * amount
