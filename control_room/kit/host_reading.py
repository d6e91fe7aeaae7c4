"""Reads all hosts from placement."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from bus.aggregates import ZONE, AggregatesFound, FindAggregates, every_aggregate
from bus.cells import CellsFound, FindCells
from bus.protocol import Ask
from bus.replication import FindTrees, KnownTree, TreesFound
from control_room.kit.hosts import KnownHost, host_of_tree

_PAGE = 2000


async def known_hosts(
    trees: Ask[FindTrees, TreesFound],
    aggregates: Ask[FindAggregates, AggregatesFound],
    cells: Ask[FindCells, CellsFound],
) -> list[KnownHost]:
    """Return all hosts with zones and free amounts, from placement's answers, to compute how many instances
    would fit. Hosts of disabled cells are `closed`.
    """
    disabled = {cell.name for cell in (await cells(FindCells(counted=False))).cells if not cell.enabled}
    zones = await zones_by_aggregate(aggregates)
    # by id: a host that moves between pages in the meantime is listed once
    found: dict[str, KnownHost] = {}
    async for page in _every_page(trees):
        for tree in page.trees:
            rest = await _rest(tree, trees) if tree.left_out else ()
            if (host := host_of_tree(page, tree, zones, rest)) is not None:
                found[host.root] = replace(host, closed=True) if host.cell in disabled else host
    return list(found.values())


async def _every_page(trees: Ask[FindTrees, TreesFound]) -> AsyncIterator[TreesFound]:
    after: int | None = 0
    while after is not None:
        page = await trees(FindTrees(after=after, limit=_PAGE))
        yield page
        after = page.more


async def zones_by_aggregate(aggregates: Ask[FindAggregates, AggregatesFound]) -> dict[str, str]:
    """Ask placement for all aggregates; return the availability zone of each that has one, by its uuid."""
    return {
        each.id: each.metadata[ZONE]
        async for page in every_aggregate(aggregates, FindAggregates())
        for each in page.aggregates
        if ZONE in each.metadata
    }


async def _rest(tree: KnownTree, trees: Ask[FindTrees, TreesFound]) -> Sequence[TreesFound]:
    root, had, more = tree.root or tree.providers[0].id, len(tree.providers), list[TreesFound]()
    while True:
        page = await trees(FindTrees(roots=(root,), skip=had))
        if not page.trees or not page.trees[0].providers:
            return more
        more.append(page)
        had += len(page.trees[0].providers)
        if not page.trees[0].left_out:
            return more
