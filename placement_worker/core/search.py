"""Searches the index for candidates, with limited effort."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np

from bus.decisions import NearMiss, Removal
from bus.queries import Candidate, CandidatesFound, FindCandidates
from placement_worker.core.assignment import BREATH
from placement_worker.core.explain import explain
from placement_worker.core.explain_combinations import Why
from placement_worker.core.fits import Fit, FitFinder
from placement_worker.core.index import Snapshot
from placement_worker.core.index_rows import Bools, Row, sums
from placement_worker.core.search_plan import SearchPlan, plan

IN_A_ROW = 64  # hosts examined before a search may pause
FIRST_BLOCK, LARGEST_BLOCK = 256, 16_384  # rows of the index that are examined together


def _anchors(snapshot: Snapshot, fitting: Bools) -> Iterator[Row]:
    """Yield the hosts that satisfy the query, in the order of their rows in the index."""
    at, preserved = snapshot.index.at, snapshot.kept_at
    low, block = 0, FIRST_BLOCK
    while low < len(fitting):
        for position in (np.flatnonzero(fitting[low : low + block]) + low).tolist():
            row = snapshot.row_at(position) if preserved else at[position]
            if row is not None:
                yield row
        low, block = low + block, min(block * 4, LARGEST_BLOCK)


T = TypeVar("T")

ANSWER_BYTES = 700_000  # maximum size of the candidates in an answer, which must fit into a message
PATIENCE = 100_000  # steps without a result (some tenths of a second), after which a search is stopped early
KEPT = 256  # maximum number of stored searches of unfinished hosts; others start again
TOGETHER = "all of it together"

Amounts = tuple[dict[str, int], dict[str, int]]  # free amounts and capacities of a tree, by resource class


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
    """Run a search to its end without pauses, and return its result."""
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


def answer(found: SearchResult) -> CandidatesFound:
    """Return the answer to FindCandidates, with as many of the candidates as fit into a message."""
    candidates: list[Candidate] = []
    bytes_left, trees = ANSWER_BYTES, dict[str, Amounts]()
    for fit in found.fits:
        root = fit.anchor.uuid
        if root not in trees:
            trees[root] = sums(found.snapshot.rows_of(root))
        one = candidate(fit, *trees[root])
        bytes_left -= len(msgspec.json.encode(one))
        if bytes_left < 0 and candidates:
            break
        candidates.append(one)
    return CandidatesFound(
        seen=found.seen,
        candidates=tuple(candidates),
        fitting=found.fitting,
        considered=found.considered,
        removals=found.removals,
        nearest=found.nearest,
        cut=found.cut or len(candidates) < len(found.fits),
    )


def _why(snapshot: Snapshot, made: SearchPlan, fitting: int) -> Generator[None, None, Why]:
    if not fitting:
        return (yield from explain(snapshot, made))
    removals = tuple(made.removals)
    if fitting < made.count:
        removals += (Removal(constraint=TOGETHER, removed=made.count - fitting, left=fitting),)
    return removals, ()


def _rounds(snapshot: Snapshot, made: SearchPlan) -> Generator[None, None, tuple[list[Fit], bool, int]]:
    finder = FitFinder(snapshot, made)
    most, dead, patience = made.query.limit, 0, PATIENCE
    fits: list[Fit] = []
    visits: Iterable[_AnchorProgress] = (_AnchorProgress(row) for row in _anchors(snapshot, finder.anchors))
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
            patience -= yield from visit.go_on(finder, visit.found + share, fits)
            if visit.more:
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
