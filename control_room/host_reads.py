"""All hosts as placement reports them, read on demand: all at first, then only changes."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from bus.aggregates import ZONE, AggregatesFound, FindAggregates
from bus.cells import CellsFound, FindCells
from bus.clock import Clock
from bus.host_health import every_health
from bus.protocol import Ask
from bus.replication import FindChanges, FindTrees, KnownTree, TreesFound
from bus.vocabulary import MAX_ORDINAL
from control_room.core.heat import Fleet
from control_room.core.hosts import KnownHost, host_of_tree
from control_room.queries import NO_ANSWER, Queries

_PAGE = 2000


async def known_hosts(
    trees: Ask[FindTrees, TreesFound],
    aggregates: Ask[FindAggregates, AggregatesFound],
    cells: Ask[FindCells, CellsFound],
) -> list[KnownHost]:
    """Return all hosts. Raise the error of a process that does not answer."""
    disabled = {cell.name for cell in (await cells(FindCells(counted=False))).cells if not cell.enabled}
    zones = await zones_by_aggregate(aggregates)
    # by id: a host that moves between pages in the meantime is listed once
    found: dict[str, KnownHost] = {}
    after: int | None = 0
    while after is not None:
        page = await trees(FindTrees(after=after, limit=_PAGE))
        for tree in page.trees:
            rest = await _rest(tree, trees) if tree.left_out else ()
            if (host := host_of_tree(page, tree, zones, rest)) is not None:
                found[host.root] = replace(host, closed=True) if host.cell in disabled else host
        after = page.more
    return list(found.values())


async def zones_by_aggregate(aggregates: Ask[FindAggregates, AggregatesFound]) -> dict[str, str]:
    zones, after, more = dict[str, str](), "", True
    while more:
        page = await aggregates(FindAggregates(after=after))
        zones |= {each.id: each.metadata[ZONE] for each in page.aggregates if ZONE in each.metadata}
        more = page.more and bool(page.aggregates)
        after = page.aggregates[-1].id if page.aggregates else ""
    return zones


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


LONGEST_UNREAD = 300.0  # seconds after which changes are not followed: all is read anew
_MOST_CHANGES = 5000  # changes after which all is read anew
_BATCH = 500  # roots in one query


class FleetReader:
    def __init__(self, questions: Queries, clock: Clock) -> None:
        self._questions = questions
        self._clock = clock
        self._fleet: Fleet | None = None
        self._read = float("-inf")
        self._layouts = int(clock.now())

    async def read(self, _: None = None) -> Fleet:
        """Return all hosts. Raise the error of a process that does not answer."""
        if self._clock.monotonic() - self._read > LONGEST_UNREAD:
            self._fleet = None
        fleet = self._fleet = await (self._followed(self._fleet) if self._fleet else self._all())
        fleet.set_down(await self._down())
        self._read = self._clock.monotonic()
        return fleet

    async def _all(self) -> Fleet:
        """Read all hosts. A change in the meantime has a higher number, and is read again."""
        last = await self._questions.changes(FindChanges(after=MAX_ORDINAL, limit=1))
        self._layouts += 1_000_000  # no number that a browser has received
        zones = await zones_by_aggregate(self._questions.aggregates)
        fleet = Fleet(number=last.last, layout=self._layouts, zones=zones)
        after: int | None = 0
        while after is not None:
            page = await self._questions.trees(FindTrees(after=after, limit=_PAGE))
            fleet.take(page)
            after = page.more
        return fleet

    async def _down(self) -> frozenset[str]:
        down = set[str]()
        with suppress(*NO_ANSWER):
            async for health in every_health(self._questions.health):
                if health.recorded:
                    down.add(health.root)
        return frozenset(down)

    async def _followed(self, fleet: Fleet) -> Fleet:
        number, roots = fleet.number, set[str]()
        while True:
            found = await self._questions.changes(FindChanges(after=number, limit=1000))
            missed = found.oldest > number + 1 and found.last > number
            unnamed = any(change.aggregates or not change.changes for change in found.changes)
            if missed or unnamed or found.last - fleet.number > _MOST_CHANGES:
                return await self._all()
            roots.update(change.root for changes in found.changes for change in changes.changes)
            if not found.changes:
                break
            number = found.changes[-1].number
        left = sorted(roots)
        while left:
            page = await self._questions.trees(FindTrees(roots=tuple(left[:_BATCH])))
            if not page.trees:
                break
            fleet.take(page, number)
            left = left[len(page.trees) :]
        fleet.number = number
        return fleet
