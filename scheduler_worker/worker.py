"""The scheduler's table: consumed messages, queries to placement, published messages."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from bus.candidates import CandidateSource
from bus.claims import ReleaseAnswered, ReleaseRequested
from bus.clock import Clock
from bus.groups import FindGroups, GroupsFound
from bus.messages import BuildCancelled, BuildPlaced, BuildUnplaceable, SchedulerAlive
from bus.moves import MovePlaced, MoveRefused
from bus.protocol import Ask
from bus.queries import BuildsFound, FindBuilds
from bus.resources import AllocationsFound, FindAllocations, FindProviders, ProvidersFound
from bus.routing import Query
from bus.sql.database import Database
from bus.topics import (
    ALLOCATIONS,
    BUILD_CANCEL,
    BUILD_CANCELLED,
    BUILD_DELETE,
    BUILD_PLACED,
    BUILD_REQUESTED,
    BUILD_UNPLACEABLE,
    CLAIM,
    CLIENT_ASKED,
    CLIENT_REQUESTED,
    CLIENTS,
    DECISION,
    EDIT_CLIENT,
    FIND_BUILDS,
    FIND_INSTANCES,
    FIND_MOVES,
    GROUPS,
    HOST_FAILED,
    HOST_HEALTH,
    HOST_REPORTED,
    MOVE_HALF,
    MOVE_HANDOVER,
    MOVE_PLACED,
    MOVE_REFUSED,
    MOVE_REQUESTED,
    MOVE_STEER,
    MOVE_TOLD,
    PROVIDERS,
    RELEASE,
    SCHEDULER_ALIVE,
    USAGES,
    WAITING,
    WHAT_IF,
    WHAT_IF_MOVES,
)
from bus.vocabulary import Message
from bus.worker import Answers, Every, On, Worker, answers, every, on, on_many
from scheduler_worker.arrivals import Arrivals
from scheduler_worker.cancelling import Cancelling
from scheduler_worker.client_door import ClientDoor, ClientLookups
from scheduler_worker.core.placing import PATIENCE
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.request_options import RequestOptions
from scheduler_worker.handovers import TELL_AGAIN_SECONDS, Handovers
from scheduler_worker.host_records import HostRecords
from scheduler_worker.hosts import GRACE
from scheduler_worker.move_arrivals import MoveArrivals
from scheduler_worker.move_lookups import MoveLookups
from scheduler_worker.placing import Claims, Scheduler
from scheduler_worker.releasing import UNHEARD_SECONDS
from scheduler_worker.request_owners import Keeping
from scheduler_worker.roster import SAYS_SECONDS
from scheduler_worker.waiting_moves import WaitingMoves
from scheduler_worker.waiting_requests import Parking, Says
from scheduler_worker.what_if import WhatIfs
from scheduler_worker.what_if_moves import WhatIfsOfMoves

BEAT_SECONDS = 1.0
SWEEP_SECONDS = 60.0
PRUNE_SECONDS = 3600.0
MEASURE_SECONDS = 15.0
RECORD_SECONDS = 1.0  # after which a change of a host is stored at the latest
REQUESTS_AT_ONCE = 1280  # of each kind among them all hosts are searched and weighed once
MOVES_AT_ONCE = 128
TRIES_UNHEARD = 3  # attempts to publish a build to its conductor before its age is checked


def scheduler_worker(
    source: CandidateSource,
    claim_many: Claims,
    release: Ask[ReleaseRequested, ReleaseAnswered],
    providers: Ask[FindProviders, ProvidersFound],
    policy: ChoicePolicy | None = None,
    clock: Clock | None = None,
    *,
    patience: float = PATIENCE,
    grace: float = GRACE,
    batch: int = REQUESTS_AT_ONCE,
    concurrency: int = 2,
    unheard_for: float = UNHEARD_SECONDS,
    groups: Ask[FindGroups, GroupsFound] | None = None,
    allocations: Ask[FindAllocations, AllocationsFound] | None = None,
    options: RequestOptions | None = None,
    loaded: Callable[[], Awaitable[None]] | None = None,
    database: Database | None = None,
    say: Says | None = None,
    builds: Ask[FindBuilds, BuildsFound] | None = None,
    client_lookups: ClientLookups | None = None,
) -> Worker:
    """Return the worker.

    With a database and a publisher, requests may wait for capacity; with `builds`, the query for builds of a
    cell, moves are supported. With `client_lookups`, clients are served.
    """
    scheduler = Scheduler(
        source,
        claim_many,
        release,
        providers,
        policy,
        clock,
        patience=patience,
        grace=grace,
        unheard_for=unheard_for,
        groups=groups,
        allocations=allocations,
        options=options,
    )
    what_ifs = WhatIfs(scheduler)
    place_many, handle = scheduler.place_many, scheduler.handle
    parking: Parking | None = None
    parts: list[_Part] = []
    if database is not None:
        parts.append(_host_records(HostRecords(scheduler.book, source, database, scheduler.clock)))
    if database is not None and say is not None:
        parking = Parking(scheduler, database, say, scheduler.roster.name, scheduler.clock)
        place_many, handle = Arrivals(scheduler, parking, scheduler.clock).place_many, parking.handle
        cancelling = Cancelling(parking, scheduler.ending, release, say, scheduler.clock)
        keeping = Keeping(parking, scheduler.clock)
        parts.append(_those_that_wait(parking, cancelling, keeping))
        if client_lookups is not None:
            parts.append(_clients(ClientDoor(database, client_lookups, keeping, what_ifs, source)))
    if builds is not None and groups is not None and allocations is not None:
        handovers: Handovers | None = None
        if database is not None:
            handovers = Handovers(
                database, claim_many, release, allocations, scheduler.ending, scheduler.clock
            )
            parts.append(_other_halves(handovers, concurrency))
        moves = MoveArrivals(
            scheduler,
            MoveLookups(source, scheduler.ending, allocations, providers, groups, builds),
            claim_many,
            release,
            None if parking is None else parking.keep_refusals,
            handovers=handovers,
            unheard_for=unheard_for,
        )
        parts.append(_moves(moves, WhatIfsOfMoves(scheduler, what_ifs, moves.courses), concurrency, parking))
    return Worker(
        "scheduler",
        consumes=[
            on_many(
                BUILD_REQUESTED,
                place_many,
                emits=[BUILD_PLACED, BUILD_UNPLACEABLE],
                batch=batch,
                concurrency=concurrency,
                unheard=scheduler.ending.take_back,
                unheard_after=TRIES_UNHEARD,
            ),
            on(HOST_REPORTED, handle, private=True),
            on(HOST_FAILED, scheduler.hear_of_failure, private=True),
            on(SCHEDULER_ALIVE, scheduler.roster.handle, private=True),
            *[row for part in parts for row in part.consumes],
        ],
        answers=[answers(WHAT_IF, what_ifs.answer), *[row for part in parts for row in part.answers]],
        asks=[
            CLAIM,
            RELEASE,
            PROVIDERS,
            GROUPS,
            ALLOCATIONS,
            FIND_BUILDS,
            *[query for part in parts for query in part.asks],
        ],
        timers=[
            every(SAYS_SECONDS, scheduler.roster.say, emits=[SCHEDULER_ALIVE], at_once=True),
            *[timer for part in parts for timer in part.timers],
        ],
        starts=[
            *([] if loaded is None else [loaded]),
            *[start for part in parts for start in part.starts],
            scheduler.opened,
        ],
        runs=[run for part in parts for run in part.runs],
        stops=[stop for part in parts for stop in part.stops],
        announces=frozenset[type[Message]]().union(*[part.announces for part in parts]),
    )


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Additional rows of the table for one task of the scheduler."""

    consumes: Sequence[On] = ()
    answers: Sequence[Answers] = ()
    asks: Sequence[Query[Any, Any]] = ()
    timers: Sequence[Every] = ()
    runs: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    starts: Sequence[Callable[[], Awaitable[None]]] = ()
    stops: Sequence[Callable[[], Awaitable[None]]] = ()
    announces: frozenset[type[Message]] = frozenset()


def _host_records(records: HostRecords) -> _Part:
    """Stores which hosts are down or closed, for the next start, and answers queries about them."""
    return _Part(
        answers=[answers(HOST_HEALTH, records.find)],
        starts=[records.load],
        timers=[
            every(RECORD_SECONDS, records.store),
            every(MEASURE_SECONDS, records.measure),
            every(PRUNE_SECONDS, records.prune),
        ],
    )


def _those_that_wait(parking: Parking, cancelling: Cancelling, keeping: Keeping) -> _Part:
    """Requests for which there is no room yet."""
    return _Part(
        consumes=[on(BUILD_CANCEL, cancelling.cancel, emits=[BUILD_DELETE])],
        answers=[answers(WAITING, keeping.waiting), answers(DECISION, keeping.decision)],
        timers=[
            every(BEAT_SECONDS, keeping.beat, at_once=True),
            every(SWEEP_SECONDS, keeping.sweep),
            every(PRUNE_SECONDS, keeping.prune),
        ],
        runs=[parking.run, parking.told.run],
        stops=[keeping.let_go],
        announces=frozenset(
            {BuildPlaced, BuildUnplaceable, BuildCancelled, MovePlaced, MoveRefused, SchedulerAlive}
        ),
    )


def _clients(door: ClientDoor) -> _Part:
    """Handles the requests and questions of clients."""
    return _Part(
        consumes=[
            on_many(
                CLIENT_REQUESTED,
                door.request_many,
                emits=[
                    BUILD_REQUESTED,
                    BUILD_CANCEL,
                    MOVE_REQUESTED,
                    MOVE_STEER,
                    BUILD_UNPLACEABLE,
                    BUILD_CANCELLED,
                    MOVE_REFUSED,
                    MOVE_TOLD,
                ],
                concurrency=4,  # a lookup in a silent cell must not stop the other clients
            )
        ],
        answers=[
            answers(CLIENT_ASKED, door.ask, concurrency=16, client="*"),
            answers(CLIENTS, door.clients),
            answers(EDIT_CLIENT, door.edit),
        ],
        asks=[USAGES, FIND_INSTANCES, FIND_MOVES],
    )


def _other_halves(handovers: Handovers, concurrency: int) -> _Part:
    """Return the rows for moves between cells."""
    return _Part(
        consumes=[
            on_many(
                MOVE_HALF,
                handovers.handle_many,
                emits=[MOVE_PLACED, MOVE_HANDOVER, BUILD_DELETE],
                batch=MOVES_AT_ONCE,
                concurrency=concurrency,
                unheard=handovers.unheard,
                unheard_after=TRIES_UNHEARD,
            )
        ],
        timers=[
            every(TELL_AGAIN_SECONDS, handovers.tell_again, emits=[MOVE_HANDOVER]),
            every(PRUNE_SECONDS, handovers.prune),
        ],
    )


def _moves(moves: MoveArrivals, what_ifs: WhatIfsOfMoves, concurrency: int, parking: Parking | None) -> _Part:
    """Return the rows for moves, which may wait for capacity."""
    return _Part(
        consumes=[
            on_many(
                MOVE_REQUESTED,
                moves.place_many,
                emits=[MOVE_PLACED, MOVE_REFUSED, MOVE_HANDOVER],
                batch=MOVES_AT_ONCE,
                concurrency=concurrency,
                unheard=moves.take_back,
                unheard_after=TRIES_UNHEARD,
            )
        ],
        answers=[answers(WHAT_IF_MOVES, what_ifs.answer)],
        runs=[] if parking is None else [WaitingMoves(parking, moves, parking.scheduler.clock).run],
    )
