"""Composes schedulers: which narrowings they have, in the order in which these prepare and limit orders."""

from collections.abc import Sequence

from bus.candidates import CandidateSource
from bus.clock import Clock
from scheduler_worker.core.gang_choice import Gangs
from scheduler_worker.dependencies import HeldAllocations, SchedulerOptions
from scheduler_worker.drawn_reservations import DrawnReservations
from scheduler_worker.extension import Fallback, Narrowing
from scheduler_worker.known_hosts import KnownHosts
from scheduler_worker.named_instances import NamedInstances
from scheduler_worker.orders import Orders
from scheduler_worker.placing import Scheduler
from scheduler_worker.queries import PlacementQueries
from scheduler_worker.server_groups import ServerGroups


def usual_narrowings(source: CandidateSource, placement: PlacementQueries, clock: Clock) -> list[Narrowing]:
    """Return the narrowings that need nothing but placement."""
    allocations = HeldAllocations(placement)
    return [
        ServerGroups(placement.groups, allocations),
        NamedInstances(allocations),
        DrawnReservations(placement.reservations, source, clock),
        Gangs(),
    ]


def plain_scheduler(
    source: CandidateSource,
    placement: PlacementQueries,
    clock: Clock,
    options: SchedulerOptions,
    narrowings: Sequence[Narrowing] = (),
    fallbacks: Sequence[Fallback] = (),
) -> Scheduler:
    """Return a scheduler without waiting requests, with the usual and further narrowings."""
    hosts, orders = KnownHosts(source, clock, options), Orders(source, options.requests, options.policy)
    narrowings = [*usual_narrowings(source, placement, clock), *narrowings]
    return Scheduler(hosts, orders.follow(), placement, options, narrowings, fallbacks)
