"""The inventories and usage of hosts, computed from provider trees of placement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bus.host_health import DISABLED, FORCED_DOWN
from bus.replication import KnownProvider, KnownTree, KnownTrees
from bus.vocabulary import MAX_CAPACITY

MOST_FIT = 9999


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStock:
    """The inventory of one resource class of one provider, with its usage."""

    resource_class: str
    free: int
    capacity: int
    min_unit: int = 1
    max_unit: int = MAX_CAPACITY
    step: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHost:
    """A host as pages show it. `closed`: it takes no new builds."""

    root: str
    name: str
    cell: str = ""
    zone: str = ""
    closed: bool = False
    traits: frozenset[str] = frozenset()  # traits of all providers in its tree
    stocks: tuple[HostStock, ...] = ()
    new: bool = False  # a host that does not exist yet, of a plan

    @property
    def forced_down(self) -> bool:
        """Return whether an operator forced the host down."""
        return FORCED_DOWN in self.traits

    @property
    def layout(self) -> object:
        """Return the host's name, cell, zone and capacities; if they change, browsers redraw the heat map."""
        amounts = [(stock.resource_class, stock.capacity, stock.max_unit) for stock in self.stocks]
        return self.name, self.cell, self.zone, amounts

    def amounts(self, resource_class: str) -> tuple[int, int]:
        """Return the capacity and the usage of a resource class, summed over the host's provider tree."""
        found = [stock for stock in self.stocks if stock.resource_class == resource_class]
        return sum(stock.capacity for stock in found), sum(stock.capacity - stock.free for stock in found)

    def fits(self, flavor: Mapping[str, int]) -> int:
        """Return a lower bound for the number of instances of a flavor that fit on the host: for each
        resource class, only the provider with the most free capacity counts.
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
    page: KnownTrees, tree: KnownTree, zones: Mapping[str, str], rest: Sequence[KnownTrees] = ()
) -> KnownHost | None:
    """Return the host of a provider tree, or None if no agent owns the tree.

    `rest` has the further pages of a tree with more providers than fit on one page.
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


def _stocks(page: KnownTrees, provider: KnownProvider) -> list[HostStock]:
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
