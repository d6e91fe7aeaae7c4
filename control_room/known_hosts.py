"""All hosts with what is free on each, as placement has them now: what is planned with."""

from collections.abc import Mapping, Sequence

from bus.aggregates import ZONE, AggregatesFound, FindAggregates
from bus.cells import CellsFound, FindCells
from bus.known_trees import FindTrees, KnownProvider, KnownTree, TreesFound
from bus.protocol import Ask
from control_room.core.planning import PlannedHost, PlannedStock
from control_room.core.reported import reported_host

_PAGE = 2000


class HostReading:
    """Who is cut short while he reads goes on where that was."""

    def __init__(
        self,
        trees: Ask[FindTrees, TreesFound],
        aggregates: Ask[FindAggregates, AggregatesFound],
        cells: Ask[FindCells, CellsFound],
    ) -> None:
        self._trees = trees
        self._aggregates = aggregates
        self._cells = cells
        self._disabled: set[str] | None = None
        self._zones: dict[str, str] | None = None
        self._found: dict[str, PlannedHost] = {}  # one that moves from page to page meanwhile is there once
        self._after: int | None = 0

    async def all(self) -> list[PlannedHost]:
        """Whoever is asked and does not answer: his error is raised."""
        if self._disabled is None:
            known = (await self._cells(FindCells(counted=False))).cells
            self._disabled = {one.name for one in known if not one.enabled}
        if self._zones is None:
            self._zones = await zones_by_aggregate(self._aggregates)
        while self._after is not None:
            page = await self._trees(FindTrees(after=self._after, limit=_PAGE))
            for tree in page.trees:
                rest = await _rest(tree, self._trees) if tree.left_out else ()
                if (host := _host(page, tree, rest, self._zones, self._disabled)) is not None:
                    self._found[host.root] = host
            self._after = page.more
        return list(self._found.values())


async def zones_by_aggregate(aggregates: Ask[FindAggregates, AggregatesFound]) -> dict[str, str]:
    zones, after, more = dict[str, str](), "", True
    while more:
        page = await aggregates(FindAggregates(after=after))
        zones.update({one.id: one.metadata[ZONE] for one in page.aggregates if ZONE in one.metadata})
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
    """None: it is gone, or nobody reports it."""
    host = reported_host(page, tree, zones)
    if host is None:
        return None
    every = [(page, one) for one in tree.providers]
    every += [(other, one) for other in rest for one in other.trees[0].providers]
    return PlannedHost(
        root=host.root,
        name=host.name,
        cell=host.cell,
        zone=host.zone,
        closed=host.closed or host.cell in disabled,
        traits=frozenset(trait for where, one in every for trait in where.traits[one.traits]),
        stocks=tuple(stock for where, one in every for stock in _stocks(where, one)),
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
