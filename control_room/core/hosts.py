"""Hosts with their inventories and usage, read from placement's trees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bus.host_marks import DISABLED, FORCED_DOWN
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
        """Return what a heat map draws, without usage and whether the host is closed."""
        amounts = [(stock.resource_class, stock.capacity, stock.max_unit) for stock in self.stocks]
        return self.name, self.cell, self.zone, amounts

    def amounts(self, resource_class: str) -> tuple[int, int]:
        """Return capacity and usage over the whole tree."""
        found = [stock for stock in self.stocks if stock.resource_class == resource_class]
        return sum(stock.capacity for stock in found), sum(stock.capacity - stock.free for stock in found)

    def fits(self, flavor: Mapping[str, int]) -> int:
        """Return how many more of a flavor fit by amounts alone, without rules. Each class comes from the
        provider with most of it, as for a flavor without groups.
        """
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
    """Return each provider with its depth, below its parent and siblings by name; one without its parent is
    at the top.
    """
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
