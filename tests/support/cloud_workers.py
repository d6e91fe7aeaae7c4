"""The workers that every small cloud of the tests has."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

from berth.composition import cell_queries, open_placement, parts_of_scheduler, placement_queries
from berth.features import add_filters, packages
from berth.settings import Settings
from bus import topics
from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.delivery.recording import RecordingBus
from bus.delivery.runner import Bus
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.worker import Worker
from cell_conductor import AttemptLimits, cell_conductor
from placement_worker import BusReader, IndexedSource, placement_worker, replica
from scheduler_worker.dependencies import SchedulerOptions
from scheduler_worker.queries import Claims, PlacementQueries
from scheduler_worker.worker import SchedulerConnections, scheduler_worker
from tests.support.feature_parts import conductor_parts

add_filters()
Make = Callable[[Bus], Worker]


def of_one_cell(
    placement: Database, cell: str, builds: Database, clock: Clock, **conductor: Any
) -> dict[str, Make]:
    """Return functions that make placement, the scheduler, and the cell's conductor with given limits."""
    limits = AttemptLimits(**conductor)

    def conductor_of(bus: Bus) -> Worker:
        asks = bus.asker_of_many(topics.CELL_CLAIM), bus.asker_of_many(topics.CELL_RELEASE)
        parts = conductor_parts(cell)
        return cell_conductor(cell, builds, *asks, clock=clock, limits=limits, parts=parts)

    return {
        "placement": lambda bus: placement_worker(
            open_placement(Settings(), placement, clock), bus.publish, (cell,)
        ),
        "scheduler": lambda bus: a_scheduler(bus, clock),
        "conductor": conductor_of,
    }


def a_scheduler(bus: Bus, clock: Clock, claim_many: Claims | None = None, **options: Any) -> Worker:
    holder_consumer, scheduler = a_scheduler_apart(bus, clock, claim_many, waits=False, **options)
    return replace(
        scheduler,
        consumes=[*holder_consumer.consumes, *scheduler.consumes],
        asks=[*holder_consumer.asks, *scheduler.asks],
        timers=[*holder_consumer.timers, *scheduler.timers],
        runs=[*holder_consumer.runs, *scheduler.runs],
    )


def a_scheduler_apart(
    bus: Bus,
    clock: Clock,
    claim_many: Claims | None = None,
    *,
    database: Database | None = None,
    waits: bool = True,
    **options: Any,
) -> tuple[Worker, Worker]:
    described = bus.asker(topics.AGGREGATES), bus.asker(topics.CELLS)
    reader = BusReader(bus.asker(topics.TREES), bus.asker(topics.CHANGES), *described)
    memory, holder_consumer = replica(reader, clock)
    queries = placement_queries(bus)
    queries = queries if claim_many is None else replace(queries, claim_many=claim_many)
    source, loaded = IndexedSource(memory), memory.loaded if waits else at_once
    options_ = SchedulerOptions(**options)
    return holder_consumer, served_scheduler(bus, source, queries, clock, database, options_, loaded)


async def at_once() -> None: ...


def served_scheduler(
    bus: Bus,
    source: CandidateSource,
    queries: PlacementQueries,
    clock: Clock,
    database: Database | None,
    options: SchedulerOptions,
    loaded: Callable[[], Awaitable[None]] = at_once,
) -> Worker:
    """Return a scheduler's worker. Without a database it makes one in memory at its start."""
    store = database or Database("sqlite+aiosqlite://", inline=True)
    needs = SchedulerConnections(
        source=source, placement=queries, cells=cell_queries(bus), database=store,
        bus=cast(RecordingBus, bus), clock=clock, options=options, loaded=loaded,
    )  # fmt: skip
    worker = scheduler_worker(needs, parts_of_scheduler(Settings()))
    if database is not None:
        return worker

    async def made() -> None:
        await migrate(store, *packages("scheduler"))

    return replace(worker, starts=[made, *worker.starts], stops=[*worker.stops, store.close])
