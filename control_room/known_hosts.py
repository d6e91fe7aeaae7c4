"""All hosts with what is free on each, as placement has them now: what is planned with."""

from collections.abc import Mapping, Sequence

from bus.aggregates import ZONE, AggregatesFound, FindAggregates
from bus.cells import CellsFound, FindCells
from bus.protocol import Ask
from bus.replication import FindTrees, KnownProvider, KnownTree, TreesFound
from control_room.core.heat import host_of_tree
from control_room.core.inventories import PlannedHost, PlannedStock

_PAGE = 2000


async def known_hosts(
    trees: Ask[FindTrees, TreesFound],
    aggregates: Ask[FindAggregates, AggregatesFound],
    cells: Ask[FindCells, CellsFound],
) -> list[PlannedHost]:
    """Return all hosts. Raise the error of a process that does not answer."""
    disabled = {cell.name for cell in (await cells(FindCells(counted=False))).cells if not cell.enabled}
    zones = await zones_by_aggregate(aggregates)
    # by id: a host that moves between pages in the meantime is listed once
    found: dict[str, PlannedHost] = {}
    after: int | None = 0
    while after is not None:
        page = await trees(FindTrees(after=after, limit=_PAGE))
        for tree in page.trees:
            rest = await _rest(tree, trees) if tree.left_out else ()
            if (host := _host(page, tree, rest, zones, disabled)) is not None:
                found[host.root] = host
        after = page.more
    return list(found.values())


async def zones_by_aggregate(aggregates: Ask[FindAggregates, AggregatesFound]) -> dict[str, str]:
    zones, after, more = dict[str, str](), "", True
    while more:
        page = await aggregates(FindAggregates(after=after))
        zones.update(
            {
                aggregate.id: aggregate.metadata[ZONE]
                for aggregate in page.aggregates
                if ZONE in aggregate.metadata
            }
        )
        more = page.more and bool(page.aggregates)
        after = page.aggregates[-1].id if page.aggregates else ""
    return zones


async def _rest(tree: KnownTree, trees: Ask[FindTrees, TreesFound]) -> Sequence[TreesFound]:
    """The providers of a large tree that had no room in the answer."""
    root, had, more = tree.root or tree.providers[0].id, len(tree.providers), list[TreesFound]()
    while True:
        page = await trees(FindTrees(roots=(root,), skip=had))
        if not page.trees or not page.trees[0].providers:
            return more
        more.append(page)
        had += len(page.trees[0].providers)
        if not page.trees[0].left_out:
            return more


def _host(
    page: TreesFound,
    tree: KnownTree,
    rest: Sequence[TreesFound],
    zones: Mapping[str, str],
    disabled: set[str],
) -> PlannedHost | None:
    """Return the host of a tree, or None if it was deleted or no agent reports it."""
    host = host_of_tree(page, tree, zones)
    if host is None:
        return None
    every = [(page, provider) for provider in tree.providers]
    every += [(other, provider) for other in rest for provider in other.trees[0].providers]
    return PlannedHost(
        root=host.root,
        name=host.name,
        cell=host.cell,
        zone=host.zone,
        closed=host.closed or host.cell in disabled,
        traits=frozenset(trait for where, provider in every for trait in where.traits[provider.traits]),
        stocks=tuple(stock for where, provider in every for stock in _stocks(where, provider)),
    )


def _stocks(page: TreesFound, provider: KnownProvider) -> list[PlannedStock]:
    told = []
    for at, taken in zip(page.stocks[provider.stock], provider.used, strict=False):
        inventory = page.inventories[at]
        told.append(
            PlannedStock(
                resource_class=inventory.resource_class,
                free=inventory.capacity - taken,
                capacity=inventory.capacity,
                min_unit=inventory.min_unit,
                max_unit=inventory.max_unit,
                step=inventory.step_size,
            )
        )
    return told
