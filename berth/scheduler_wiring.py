"""Makes the scheduler worker from settings."""

from berth.choice import maintenance_options, policy, request_options
from berth.searching import candidate_source, cell_queries, placement_queries
from berth.settings import Settings
from bus.delivery.recording import RecordingBus
from bus.sql.database import Database
from bus.worker import Worker
from placement_worker import SharedMemory
from scheduler_worker.dependencies import SchedulerOptions
from scheduler_worker.worker import SchedulerNeeds, scheduler_worker


def scheduler_of(
    settings: Settings, bus: RecordingBus, store: Database, shared: SharedMemory | None
) -> list[Worker]:
    """Return the scheduler and, unless `shared` has placement's index, the worker that copies this index."""
    place = candidate_source(bus, shared)
    needs = SchedulerNeeds(
        source=place.source,
        placement=placement_queries(bus),
        cells=cell_queries(bus),
        database=store,
        bus=bus,
        publish=bus.publish,
        clock=bus.clock,
        options=SchedulerOptions(
            policy=policy(settings),
            requests=request_options(settings),
            held_share=settings.scheduler.waiting_share,
            keep=settings.keep.ended,
            keep_acts=settings.keep.acts,
            maintenance=maintenance_options(settings),
        ),
        loaded=place.loaded,
    )
    return [*place.workers, scheduler_worker(needs)]
