"""Makes the placement worker from settings."""

from dataclasses import replace

from berth.settings import Settings
from bus.delivery.runner import Bus
from bus.sql.database import Database
from bus.worker import Worker
from placement_worker import Placement, RegistryLimits, SharedMemory, placement_worker


def placement_of(settings: Settings, bus: Bus, store: Database, shared: SharedMemory | None) -> Worker:
    """Return the placement worker; if enabled in the settings, with its HTTP API and the copying of
    Keystone's limits.
    """
    keep = settings.keep
    most = settings.limits
    limits = RegistryLimits(
        reservations=most.reservations,
        reservations_of_project=most.reservations_project,
        slots=most.reservation_slots,
        aggregates=most.aggregates,
        groups=most.groups,
        groups_of_project=most.groups_project,
    )
    placement = Placement(store, bus.clock, keep=keep.ended, keep_changes=keep.changes, limits=limits)
    if shared is not None:
        shared.give(placement.memory)
    worker = placement_worker(placement, bus.publish, settings.cell_names)
    if settings.quotas.cloud:
        # imports an HTTP client, which loads slowly
        from placement_worker.keystone_limits import copying_limits

        worker = replace(worker, runs=[*worker.runs, copying_limits(settings.quotas.cloud, placement.quotas)])
    if settings.placement.http:
        from berth.placement_http import placement_http

        # placement alone: no scheduler stores an audit trail
        publish = None if settings.embedded and shared is None else bus.publish
        worker = replace(worker, runs=[*worker.runs, placement_http(placement, settings, publish)])
    return worker
