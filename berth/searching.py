"""Connects a scheduler to its source of candidates: placement's index in the same process, or a replica."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from bus import topics
from bus.candidates import CandidateSource
from bus.delivery.runner import Bus
from bus.worker import Worker
from placement_worker import BusReader, IndexedSource, SharedMemory, replica
from scheduler_worker.queries import CellQueries, PlacementQueries

CELL_SECONDS = 5.0  # for a cell's answer to a scheduler; the wait also delays moves in other cells


class SearchPlace(NamedTuple):
    """A scheduler's source of candidates, and the workers that keep it current."""

    source: CandidateSource
    loaded: Callable[[], Awaitable[None]]
    workers: Sequence[Worker]


def candidate_source(bus: Bus, shared: SharedMemory | None) -> SearchPlace:
    """Return a scheduler's source of candidates: placement's index in this process, or else a replica."""
    if shared is not None:
        return SearchPlace(IndexedSource(shared), shared.loaded, ())
    ask = bus.asker
    reader = BusReader(ask(topics.TREES), ask(topics.CHANGES), ask(topics.AGGREGATES), ask(topics.CELLS))
    index, worker = replica(reader, bus.clock)
    return SearchPlace(IndexedSource(index), index.loaded, (worker,))


def placement_queries(bus: Bus) -> PlacementQueries:
    return PlacementQueries(
        claim_many=bus.asker_of_many(topics.CLAIM),
        release=bus.asker(topics.RELEASE),
        providers=bus.asker(topics.PROVIDERS),
        groups=bus.asker(topics.GROUPS),
        quotas=bus.asker(topics.QUOTAS),
        allocations=bus.asker(topics.ALLOCATIONS),
        usages=bus.asker(topics.USAGES),
        edit=bus.asker(topics.EDIT),
        edit_name=bus.asker(topics.EDIT_NAME),
        preemptions=bus.asker(topics.PREEMPTIONS),
        reservations=bus.asker(topics.RESERVATIONS),
        edit_reservation=bus.asker(topics.EDIT_RESERVATION),
    )


def cell_queries(bus: Bus) -> CellQueries:
    return CellQueries(
        builds=bus.asker(topics.FIND_BUILDS, timeout=CELL_SECONDS),
        instances=bus.asker(topics.FIND_INSTANCES, timeout=CELL_SECONDS),
        moves=bus.asker(topics.FIND_MOVES, timeout=CELL_SECONDS),
    )
