"""Placement assembled: all groups of operations on one database, with one change log and one index."""

import asyncio
from collections.abc import Callable, Generator
from typing import TypeVar

from bus.candidates import SenselessQuery
from bus.clock import Clock
from bus.errors import Poison
from bus.queries import CandidatesFound, FindCandidates
from bus.sql.database import Database
from placement_worker.change_log import ChangeLog
from placement_worker.core.index import Snapshot
from placement_worker.core.search import page_steps
from placement_worker.lookups import Lookups
from placement_worker.memory import Memory
from placement_worker.providers import BulkLoad, ProviderOperations
from placement_worker.registries import AggregateOperations, CellOperations, ClassesAndTraits, ServerGroups
from placement_worker.reports import ReportOperations
from placement_worker.store.changes import ProviderNumbers
from placement_worker.store.numbered_names import Book
from placement_worker.transactions import ClaimOperations, Parts, again

T = TypeVar("T")
Steps = Generator[None, None, T]

SLICE_SECONDS = 0.005  # for so long a search has the process to itself


class Searches:
    """Runs candidate searches in turns: a long search pauses after each time slice for the waiting ones."""

    def __init__(self, memory: Memory, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock
        self._turn = asyncio.Lock()  # first come, first served

    async def run(self, begin: Callable[[Snapshot, FindCandidates], Steps[T]], query: FindCandidates) -> T:
        snapshot = Snapshot(self._memory.index)
        steps = begin(snapshot, query)
        done = self._slice(steps)
        if done is None:
            with snapshot.held():
                while done is None:
                    async with self._turn:
                        await asyncio.sleep(0)
                        done = self._slice(steps)
        return done[0]

    def _slice(self, steps: Steps[T]) -> tuple[T] | None:
        until = self._clock.monotonic() + SLICE_SECONDS
        try:
            next(steps)
            while self._clock.monotonic() < until:
                next(steps)
        except StopIteration as end:
            return (end.value,)
        return None


# for this time retired consumers, and reports of deleted trees, are refused
REMEMBER_SECONDS = 7 * 24 * 3600.0


class Placement:
    """All operations on resources. Several processes may use one database: it serializes their writes."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database = database
        self.clock = clock
        self.book = Book()
        self.log = ChangeLog(database, self.book)
        self.memory = self.log.memory
        self.searches = Searches(self.memory, clock)
        parts = Parts(database, clock, self.book, self.log, ProviderNumbers(database))
        self.claims = ClaimOperations(parts)
        self.reports = ReportOperations(parts)
        self.providers = ProviderOperations(parts)
        self.bulk_load = BulkLoad(parts)
        self.classes_and_traits = ClassesAndTraits(parts)
        self.server_groups = ServerGroups(parts)
        self.aggregates = AggregateOperations(parts)
        self.cells = CellOperations(parts, self.reports)
        self.lookups = Lookups(parts)

    @again()
    async def start(self) -> None:
        """Create the standard names and load the index. The database has been migrated before."""
        await self.book.open(self.database, self.clock.now())
        await self.memory.reload()

    async def find_candidates(self, query: FindCandidates) -> CandidatesFound:
        try:
            return await self.searches.run(page_steps, query)
        except SenselessQuery as wrong:
            raise Poison(str(wrong)) from None

    async def prune(self) -> None:
        """Delete retired consumers and deleted trees after REMEMBER_SECONDS."""
        before = self.clock.now() - REMEMBER_SECONDS
        await self.claims.prune(before)
        await self.reports.prune(before)
