"""Assembles placement: all operations on one database, with a change log and an index; and the placement
worker, which consumes reports, answers queries and publishes changes.
"""

import asyncio
import logging
from collections.abc import Collection, Generator, Sequence
from functools import partial
from typing import TypeVar

from prometheus_client import Gauge

from bus import topics
from bus.audit_trail import ActsRecorded
from bus.candidates import SenselessQuery
from bus.clock import Clock
from bus.errors import BrokerRefused, Poison, Unavailable
from bus.messages import BuildReshaped, InventoryReported
from bus.queries import CandidatesFound, FindCandidates
from bus.replication import PlacementChanged
from bus.vocabulary import KEEP_SECONDS, Message
from bus.worker import Answers, Narrow, On, Widen, Worker, answers, answers_many, every, on_many, prune_period
from placement_worker.change_log import Publish
from placement_worker.core.index import Snapshot
from placement_worker.core.search import SearchResult, answer, search_steps
from placement_worker.extension import PlacementNeeds, PlacementPart
from placement_worker.lookups import Lookups
from placement_worker.memory import Memory
from placement_worker.providers import ProviderOperations
from placement_worker.registries import AggregateOperations, CellOperations, ClassesAndTraits
from placement_worker.reports import ReportOperations
from placement_worker.transactions import ClaimOperations, again

T = TypeVar("T")

SLICE_SECONDS = 0.005  # maximum time of a search without a pause for other tasks


class Searches:
    """Runs candidate searches in turns: a long search pauses after each time slice for waiting searches."""

    def __init__(self, memory: Memory, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock
        self._turn = asyncio.Lock()  # acquired in the order of the requests

    async def run(self, query: FindCandidates) -> SearchResult:
        """Search candidates in slices, so that a long search does not block claims; concurrent changes do not
        affect it.
        """
        snapshot = Snapshot(self._memory.index)
        steps = search_steps(snapshot, query)
        done = self._slice(steps)
        if done is None:
            with snapshot.held():
                while done is None:
                    async with self._turn:
                        await asyncio.sleep(0)
                        done = self._slice(steps)
        return done

    def _slice(self, steps: Generator[None, None, SearchResult]) -> SearchResult | None:
        """Continue a search for a slice of time; return its result, or None if it has not ended."""
        until = self._clock.monotonic() + SLICE_SECONDS
        try:
            next(steps)
            while self._clock.monotonic() < until:
                next(steps)
        except StopIteration as end:
            found: SearchResult = end.value
            return found
        return None


class Placement:
    """All operations of placement. Several processes may use the same database, which orders their writes."""

    def __init__(
        self,
        needs: PlacementNeeds,
        parts: Sequence[PlacementPart] = (),
        *,
        keep: float = KEEP_SECONDS,
        most_aggregates: int = 20_000,
    ) -> None:
        self.needs = needs
        # seconds for which retired consumers and reports of deleted trees are refused, and past states stored
        self.keep = keep
        self.database = needs.database
        self.clock = needs.clock
        self.book = needs.book
        self.log = needs.log
        self.memory = self.log.memory
        self.searches = Searches(self.memory, self.clock)
        rules = [rule for part in parts for rule in part.rules]
        self.claims = ClaimOperations(*needs.operations, rules)
        self.reports = ReportOperations(*needs.operations)
        self.providers = ProviderOperations(*needs.operations)
        self.classes_and_traits = ClassesAndTraits(*needs.operations)
        self.aggregates = AggregateOperations(*needs.operations, most_aggregates)
        self.cells = CellOperations(*needs.operations, self.reports)
        protecting = {column for rule in rules for column, why in rule.columns.items() if why}
        objects = {table: project for part in parts for table, project in part.objects.items()}
        self.lookups = Lookups(*needs.operations, tuple(sorted(protecting)), tuple(objects.items()))
        self._failed_over = asyncio.Event()
        self.rows = [part.rows(self) for part in parts]  # of features, for the worker's table
        self.database.on_new_history(self._forget)

    def _forget(self) -> None:
        """Discard cached ids and the relay's position after a fail-over of the database: the commits that
        stored them may be lost.
        """
        self.book.forget()
        self.needs.numbers.forget()
        self.log.relay.forget()
        self._failed_over.set()

    def of(self, kind: type[T]) -> T:
        """Return the object of this type that the part of a feature offers."""
        return self.needs.of(kind)

    async def follow_failovers(self) -> None:
        """Read the index again after each fail-over of the database, as soon as the new primary answers."""
        while True:
            await self._failed_over.wait()
            self._failed_over.clear()
            while True:
                try:
                    await self.memory.fresh()
                    break
                except Unavailable as away:
                    log.warning("the index is not read again yet: %s", away)
                    await asyncio.sleep(RETRY_SECONDS)

    @again()
    async def start(self) -> None:
        """Store the names of the standard resource classes and traits, and load the index. Migrations must
        have run before."""
        await self.book.open(self.database, self.clock.now())
        await self.memory.reload()

    async def find_candidates(self, query: FindCandidates) -> CandidatesFound:
        """Answer a query for candidates; refuse one that no provider could ever fulfil."""
        try:
            return answer(await self.searches.run(query))
        except SenselessQuery as wrong:
            raise Poison(str(wrong)) from None

    def oldest_kept(self) -> float:
        """Return the time since when retired consumers and records are kept; older ones are deleted."""
        return self.clock.now() - self.keep

    async def prune(self) -> None:
        """Delete records that are older than the time to keep them."""
        before = self.oldest_kept()
        await self.claims.prune(before)
        await self.reports.prune(before)


log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5  # between attempts to read the index while the database is unavailable after a fail-over
AGAIN_SECONDS = 5.0  # until the next attempt after the broker refused to let us consume a cell's queues


def reported_in(placement: Placement, cell: str) -> On:
    """Return the row of the worker's table that consumes the inventory reports of one cell's agents."""

    async def report_many(reports: Sequence[InventoryReported]) -> Sequence[Poison | None]:
        return await placement.reports.report_many(reports, cell=cell)

    return on_many(topics.INVENTORY_REPORTED.at(cell=cell), report_many)


def asked_in(placement: Placement, cell: str) -> Sequence[Answers]:
    """Return the queries that this cell's workers may send, limited to what is in the cell."""
    claims, lookups = placement.claims, placement.lookups
    return (
        answers_many(topics.CELL_CLAIM, partial(claims.claim_many, cell=cell), cell=cell),
        answers_many(topics.CELL_RELEASE, partial(claims.release_many, cell=cell), cell=cell),
        answers(topics.CELL_PROVIDERS, partial(lookups.providers, cell=cell), cell=cell),
        answers(topics.CELL_ALLOCATIONS, partial(lookups.allocations, cell=cell), cell=cell),
    )


async def serve_registered(placement: Placement, besides: Collection[str], widen: Widen) -> None:
    """Consume the queues of all registered cells except `besides`, also of cells registered later. `widen`
    adds rows to the worker's table while it runs, and returns a function that removes them.
    """
    served: dict[str, Narrow] = {}
    registered = asyncio.Event()
    placement.memory.watch(lambda _, described: registered.set() if described else None)
    while True:
        registered.clear()
        cells = placement.memory.index.cell_facts.keys() - set(besides)
        try:
            for cell in sorted(cells - served.keys()):
                served[cell] = await widen([reported_in(placement, cell), *asked_in(placement, cell)])
                log.info("cell %s is consumed", cell)
            for cell in sorted(served.keys() - cells):
                await served.pop(cell)()
                log.info("cell %s is no longer consumed", cell)
        except (Unavailable, BrokerRefused) as problem:
            log.error("not every registered cell is consumed yet: %s", problem)
            await asyncio.sleep(AGAIN_SECONDS)
            continue
        await registered.wait()


LAST_CHANGE = Gauge("berth_placement_last_change", "number of the last commit that this index has applied")
ROOTS = Gauge("berth_placement_roots", "hosts and bare-metal nodes in this index")


ANNOUNCES: frozenset[type[Message]] = frozenset({PlacementChanged, BuildReshaped, ActsRecorded})

CATCH_UP_SECONDS = 5.0
SWEEP_SECONDS = 10.0
TRIM_SECONDS = 60.0


def _answers(placement: Placement, cells: Sequence[str]) -> list[Answers]:
    return [
        answers(topics.FIND_CANDIDATES, placement.find_candidates),
        answers_many(topics.CLAIM, placement.claims.claim_many),
        answers_many(topics.RELEASE, placement.claims.release_many),
        answers(topics.PROVIDERS, placement.lookups.providers),
        *(row for cell in cells for row in asked_in(placement, cell)),
        answers_many(topics.EDIT, placement.providers.edit_many),
        answers(topics.EDIT_OWNER, placement.reports.give),
        answers(topics.EDIT_LABELS, placement.reports.label),
        answers(topics.ALLOCATIONS, placement.lookups.allocations),
        answers(topics.USAGES, placement.lookups.usages),
        answers(topics.TREES, placement.lookups.trees, concurrency=2),
        answers(topics.CHANGES, placement.lookups.changes),
        answers(topics.NAMES, placement.classes_and_traits.find),
        answers(topics.EDIT_NAME, placement.classes_and_traits.edit),
        answers(topics.AGGREGATES, placement.aggregates.find),
        answers(topics.EDIT_AGGREGATE, placement.aggregates.edit),
        answers(topics.CELLS, placement.cells.find),
        answers(topics.EDIT_CELL, placement.cells.edit),
    ]


def placement_worker(placement: Placement, publish: Publish, cells: Sequence[str]) -> Worker:
    """Return the placement worker, which serves the cells in `cells` and all registered cells.

    Each cell has separate queues. The queue of a message determines its cell; fields of the message do not.
    """

    async def catch_up() -> None:
        await placement.memory.fresh()
        LAST_CHANGE.set(placement.memory.index.seen)
        ROOTS.set(len(placement.memory.index.trees))

    return Worker(
        "placement",
        consumes=[
            *(reported_in(placement, cell) for cell in cells),
            on_many(topics.PLACEMENT_CHANGED, placement.memory.handle_many, private=True, concurrency=1),
        ],
        answers=_answers(placement, cells),
        timers=[
            every(CATCH_UP_SECONDS, catch_up),
            every(SWEEP_SECONDS, placement.reports.sweep),
            every(TRIM_SECONDS, placement.log.trim),
            every(prune_period(placement.keep), placement.prune),
        ],
        starts=[placement.start],
        runs=[
            lambda: placement.log.relay.run(publish),
            lambda: placement.reports.reshaped_builds.run(publish),
            placement.follow_failovers,
        ],
        widens=[partial(serve_registered, placement, cells)],
        announces=ANNOUNCES,
    ).with_rows(placement.rows)
