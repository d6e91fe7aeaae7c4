"""Searches the index for candidates, page by page and with limited effort, from varying start hosts."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar
from zlib import crc32

import numpy as np

from bus.decisions import NearMiss, Removal
from bus.queries import Candidate, CandidatesFound, FindCandidates
from placement_worker.core.explain import Why, explain
from placement_worker.core.fits import BREATH, Fit, FitFinder, SearchPlan, plan
from placement_worker.core.index import Bools, Row, Snapshot, lone_candidate, sums

IN_A_ROW = 64  # hosts examined before a search may pause
FIRST_BLOCK, LARGEST_BLOCK = 256, 16_384  # rows of the index that are examined together


@dataclass(slots=True)
class Round:
    """Visits each row of the index once: from a start row to the last, then from the first to the start."""

    snapshot: Snapshot
    left: Bools
    start: int
    after: int
    size: int

    def anchors(self) -> Iterator[Row | None]:
        """Yield the hosts that satisfy the query, in the order of their rows in the index, and `None` at
        points where the search may pause.
        """
        at, preserved = self.snapshot.index.at, self.snapshot.kept_at
        for positions in _walk(self.left, self.start, self.after, self.size):
            for low in range(0, len(positions), IN_A_ROW):
                for position in positions[low : low + IN_A_ROW]:
                    row = self.snapshot.row_at(position) if preserved else at[position]
                    if row is not None:
                        yield row
                yield None

    def place(self, row: Row) -> int:
        return (row.position - self.start) % self.size


def first_row(seed: str, high: int, size: int) -> int:
    """Return the row of the index where a search with this seed starts. Adding a few hosts to the index does
    not change the start. `high` rows of `size` are in use.
    """
    grain = size // 16
    span = high - high % grain if high > grain else high
    return (crc32(seed.encode()) * span) >> 32 if seed else 0


def _walk(fitting: Bools, start: int, after: int, size: int) -> Iterator[list[int]]:
    """Yield the rows of fitting hosts in blocks: from the start row to the last row of the index, then from
    its first row to the start row. The first `after` rows of this sequence are skipped.
    """
    block = FIRST_BLOCK
    for low, end in ((start + after, size), (max(start + after - size, 0), start)):
        end = min(end, len(fitting))
        while low < end:
            yield (np.flatnonzero(fitting[low : min(low + block, end)]) + low).tolist()
            low, block = low + block, min(block * 4, LARGEST_BLOCK)


T = TypeVar("T")

PAGE_BYTES = 700_000  # maximum size of a page, which must fit into a message
PATIENCE = 100_000  # steps without a result (some tenths of a second), after which a search is stopped early
HOST_PATIENCE = 20_000  # steps without a result on one host, after which the search continues on other hosts
KEPT = 256  # maximum number of stored searches of unfinished hosts; others start again
TOGETHER = "all of it together"


@dataclass(slots=True)
class SearchResult:
    """The result of a search for candidates: sets of allocations or, if no host fits, the reasons."""

    snapshot: Snapshot  # the trees that were searched
    seen: int  # the last change number that the index includes
    fits: list[Fit]
    cut: bool  # True: there may be more candidates
    fitting: int  # number of hosts that fit
    considered: int
    removals: tuple[Removal, ...]
    nearest: tuple[NearMiss, ...] = ()


def at_once(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def search_steps(snapshot: Snapshot, query: FindCandidates) -> Generator[None, None, SearchResult]:
    """Search up to `limit` sets of allocations that satisfy a query, several per host. This is a generator:
    its caller may pause the search at each `yield`.
    """
    seen, made = snapshot.index.seen, plan(snapshot, query)
    fits, cut, dead = yield from _rounds(snapshot, made)
    fitting = made.count - dead if fits or cut else 0
    removals, nearest = yield from _why(snapshot, made, fitting)
    return SearchResult(snapshot, seen, fits, cut, fitting, made.considered, removals, nearest)


def page_steps(snapshot: Snapshot, query: FindCandidates) -> Generator[None, None, CandidatesFound]:
    """Search one page of hosts for candidates; each host is on one page only. This is a generator: its caller
    may pause the search at each `yield`.
    """
    seen, made = snapshot.index.seen, plan(snapshot, query)
    got = yield from _page(snapshot, made)
    fitting = made.count - got.dead if got.candidates or query.after or got.more is not None else 0
    removals, nearest = yield from _why(snapshot, made, fitting)
    return CandidatesFound(
        seen=seen,
        candidates=tuple(got.candidates),
        fitting=fitting,
        considered=made.considered,
        more=got.more,
        removals=removals,
        nearest=nearest,
        cut=got.cut,
    )


def _why(snapshot: Snapshot, made: SearchPlan, fitting: int) -> Generator[None, None, Why]:
    if not fitting:
        return (yield from explain(snapshot, made))
    removals = tuple(made.removals)
    if fitting < made.count:
        removals += (Removal(constraint=TOGETHER, removed=made.count - fitting, left=fitting),)
    return removals, ()


def _rounds(snapshot: Snapshot, made: SearchPlan) -> Generator[None, None, tuple[list[Fit], bool, int]]:
    query, index = made.query, snapshot.index
    start = first_row(query.seed, index.high, len(index.at))
    finder = FitFinder(snapshot, made, start)
    most, dead, patience = query.limit, 0, PATIENCE
    fits: list[Fit] = []
    visits: Iterable[_AnchorProgress] = (
        _AnchorProgress(row)
        for row in Round(snapshot, finder.anchors, start, 0, len(index.at)).anchors()
        if row is not None
    )
    share = max(most // max(made.count, 1), 1)
    while True:
        waiting: list[_AnchorProgress] = []
        for nth, visit in enumerate(visits):
            if nth % IN_A_ROW == IN_A_ROW - 1:
                yield
            if len(fits) > most or patience <= 0:
                return fits[:most], True, dead
            if finder.alone(visit.row):
                fits.append(finder.only_fit(visit.row))
                continue
            end = visit.found + share
            if query.per_host:
                end = min(end, query.per_host)
            patience -= yield from visit.go_on(finder, end, fits)
            if visit.more and not (query.per_host and visit.found == query.per_host):
                if len(waiting) >= KEPT:
                    visit.ways = None
                waiting.append(visit)
            elif not visit.found:
                dead += finder.is_dead(visit.row)
        if not waiting:
            return fits[:most], len(fits) > most, dead
        visits, share = waiting, max((most - len(fits)) // len(waiting), 1)


@dataclass(slots=True)
class _AnchorProgress:
    """A host, and how far the search for allocations on this host has progressed."""

    row: Row
    found: int = 0
    more: bool = True
    ways: Iterator[Fit | None] | None = None  # the running search; None before the first step

    def go_on(self, finder: FitFinder, end: int, fits: list[Fit]) -> Generator[None, None, int]:
        """Continue the search on this host until `end` sets of allocations were found on it, or a time slice
        is over; append them to `fits`. A generator: the caller may pause the search at each `yield`. Return
        the number of search steps that found nothing.
        """
        skip = 0
        if self.ways is None:
            self.ways, skip = finder.fits(self.row), self.found
        for fit in self.ways:
            if skip:
                skip -= fit is not None
            elif fit is None:
                yield
                return BREATH
            else:
                fits.append(fit)
                self.found += 1
                if self.found % IN_A_ROW == 0:
                    yield
                if self.found == end:
                    return 0
        self.more = False
        return 0


@dataclass(slots=True)
class _Page:
    candidates: list[Candidate] = field(default_factory=list)
    more: int | None = None
    dead: int = 0
    cut: bool = False


def _page(snapshot: Snapshot, made: SearchPlan) -> Generator[None, None, _Page]:
    query = made.query
    limit, first = query.limit, query.groups[0]
    size = len(snapshot.index.at)
    start = first_row(query.seed, snapshot.index.high, size)
    finder = FitFinder(snapshot, made, start)
    walk, page = Round(snapshot, finder.anchors, start, query.after, size), _Page()
    bytes_left, patience, found = PAGE_BYTES, PATIENCE, page.candidates
    asked = sum(len(name) + 14 for group in query.groups for name in group.resources)
    flat = not made.slots
    for row in walk.anchors():
        if row is None:
            yield
            continue
        if len(found) == limit or patience <= 0:
            page.more = walk.place(row)
            page.cut |= len(found) < limit
            return page
        if flat or finder.alone(row):
            bytes_left -= row.size + asked
            if bytes_left < 0 and found:
                page.more = walk.place(row)
                return page
            found.append(lone_candidate(row, first))
            continue
        fits, spent, whole = yield from _some(finder, row, query.per_host or limit)
        patience -= spent
        page.cut |= not whole
        if not fits:
            page.dead += finder.is_dead(row)
        free, capacity = sums(snapshot.rows_of(row.uuid))
        for nth, fit in enumerate(fits):
            bytes_left -= row.size + asked + _further_bytes(fit, free)
            if len(found) == limit or (bytes_left < 0 and found):
                if nth == len(found):  # this only host of the page has more allocations than fit on a page
                    break
                del found[len(found) - nth :]
                page.more = walk.place(row)
                return page
            found.append(candidate(fit, free, capacity))
    return page


def _some(finder: FitFinder, anchor: Row, most: int) -> Generator[None, None, tuple[list[Fit], int, bool]]:
    """Return up to `most` sets of allocations on a host, the number of search steps that found nothing, and
    whether the search was complete. A generator: the caller may pause the search at each `yield`.
    """
    fits: list[Fit] = []
    spent = 0
    for fit in finder.fits(anchor):
        if fit is not None:
            fits.append(fit)
            if len(fits) % IN_A_ROW == 0:
                yield
            if len(fits) == most:
                break
        else:
            yield
            spent += BREATH
            if spent > HOST_PATIENCE:
                break
    whole = spent <= HOST_PATIENCE
    return fits, spent if fits else spent + finder.cost(anchor), whole


def candidate(
    fit: Fit, free: dict[str, int], capacity: dict[str, int], *, capacities: bool = False
) -> Candidate:
    """Convert a found set of allocations to a Candidate. `free` and `capacity` are the amounts of the host's
    whole tree. With `capacities`, the Candidate also has the capacity of each provider with allocations.
    """
    row, rows = fit.anchor, fit.rows
    return Candidate(
        row.uuid,
        row.host,
        row.cell,
        row.agent,
        row.zone,
        fit.allocations,
        rows[0].shapes if len(rows) == 1 else {row.uuid: row.shape for row in rows},
        free,
        capacity,
        row.traits,
        fit.mappings if fit.mappings.keys() != {""} else {},
        {row.uuid: {name: row.free[name] for name in fit.allocations[row.uuid]} for row in rows},
        row.aggregates,
        {row.uuid: row.capacity for row in rows} if capacities else {},
    )


def _further_bytes(fit: Fit, free: dict[str, int]) -> int:
    mapped = sum(len(suffix) + 8 + 40 * len(uuids) for suffix, uuids in fit.mappings.items())
    name_bytes = sum(len(name) + 16 for asked in fit.allocations.values() for name in asked)
    return 170 * len(fit.rows) + mapped + name_bytes + 2 * sum(len(name) + 24 for name in free)
