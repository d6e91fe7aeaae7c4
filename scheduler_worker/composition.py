"""Makes schedulers that place without a worker, a database and cells."""

from typing import Any

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.sql.database import Database
from scheduler_worker.dependencies import SchedulerOptions
from scheduler_worker.extension import PartsOf, SchedulerNeeds
from scheduler_worker.known_hosts import KnownHosts
from scheduler_worker.orders import Orders
from scheduler_worker.placing import Scheduler
from scheduler_worker.queries import CellQueries, PlacementQueries


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
    hosts, orders = KnownHosts(source, clock, options), Orders(source, options.requests, options.policy)
    database = Database("sqlite+aiosqlite://")
    cells = CellQueries(builds=_unused, instances=_unused, moves=_unused)
    return Scheduler(
        hosts,
        orders.follow(),
        placement,
        options,
        lambda scheduler: parts_of(
            SchedulerNeeds(
                scheduler=scheduler, cells=cells, database=database, publish=_unused, options=options
            )
        ),
    )


async def _unused(*asked: object) -> Any:
    raise AssertionError(f"a scheduler without a worker has no cells: {asked}")
