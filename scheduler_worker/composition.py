"""Makes schedulers without a worker, a database and cells; and the objects that parts of features get."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.feature import PartNeeds
from bus.protocol import Ask
from bus.sql.database import Database
from scheduler_worker.dependencies import Publish, SchedulerOptions
from scheduler_worker.explanations import Explanations
from scheduler_worker.known_hosts import KnownHosts
from scheduler_worker.owners import Owners
from scheduler_worker.placing.orders import Orders
from scheduler_worker.placing.part import SchedulerPart
from scheduler_worker.placing.scheduler import Scheduler
from scheduler_worker.placing.surface import Placing
from scheduler_worker.queries import CellQueries, PlacementQueries


@dataclass(frozen=True, kw_only=True)
class SchedulerNeeds(PartNeeds):
    """The objects that a scheduler gives to the parts of features. Until all parts were made, a part only
    reads the attributes of `scheduler`.
    """

    scheduler: Placing
    parts: Callable[[], Sequence[SchedulerPart]]  # returns the parts of all features, after they were made
    owners: Owners
    explanations: Explanations
    cells: CellQueries
    database: Database
    publish: Publish
    asker: Callable[..., Ask[Any, Any]]  # returns a function that sends queries of a type
    options: SchedulerOptions


def needs_of(
    scheduler: Scheduler,
    cells: CellQueries,
    database: Database,
    *,
    publish: Publish,
    asker: Callable[..., Ask[Any, Any]],
    options: SchedulerOptions,
) -> SchedulerNeeds:
    """Return the objects of the kernel that features of the scheduler may use."""
    return SchedulerNeeds(
        scheduler=scheduler,
        parts=lambda: scheduler.parts,
        owners=Owners(database, cells, scheduler),
        explanations=Explanations(database, scheduler),
        cells=cells,
        database=database,
        publish=publish,
        asker=asker,
        options=options,
    )


PartsOf = Callable[[SchedulerNeeds], Sequence[SchedulerPart]]  # returns the parts in the order of their list


def plain_scheduler(
    source: CandidateSource,
    placement: PlacementQueries,
    clock: Clock,
    options: SchedulerOptions,
    parts_of: PartsOf,
) -> Scheduler:
    """Return a scheduler without a worker. `parts_of` returns the parts of its features, whose database stays
    empty.
    """
    hosts = KnownHosts(source, clock, options.grace, options.policy.cells)
    orders = Orders(source, options.requests, options.policy)
    database = Database("sqlite+aiosqlite://")
    cells = CellQueries(builds=_unused, instances=_unused)
    return Scheduler(
        hosts,
        orders.follow(),
        placement,
        options,
        lambda scheduler: parts_of(
            needs_of(scheduler, cells, database, publish=_unused, asker=_no_asker, options=options)
        ),
    )


def _no_asker(*query: object, **options: object) -> Ask[Any, Any]:
    return _unused


async def _unused(*asked: object) -> Any:
    raise AssertionError(f"a scheduler without a worker has no cells: {asked}")
