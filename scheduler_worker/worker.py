"""The scheduler's table: consumed messages, queries to placement, published messages."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from bus import topics
from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.messages import BuildCancelled, BuildPlaced, BuildUnplaceable, SchedulerAlive
from bus.moves import MovePlaced, MoveRefused
from bus.routing import Query
from bus.sql.database import Database
from bus.vocabulary import Message
from bus.worker import Answers, Every, On, Worker, answers, every, on, on_many
from scheduler_worker.cancelling import Cancelling
from scheduler_worker.client_door import ClientDoor
from scheduler_worker.dependencies import CellQueries, PlacementQueries, SchedulerOptions
from scheduler_worker.handovers import TELL_AGAIN_SECONDS, Handovers
from scheduler_worker.host_records import HostRecords
from scheduler_worker.move_courses import MoveCourses
from scheduler_worker.move_lookups import MoveLookups
from scheduler_worker.placing import Scheduler
from scheduler_worker.resolving import RelatedHosts
from scheduler_worker.roster import SAYS_SECONDS, WaitingSignal
from scheduler_worker.waiting.builds import NewBuilds, WaitingBuilds
from scheduler_worker.waiting.hosts import Sight
from scheduler_worker.waiting.moves import MoveArrivals, NewMoves, UnheardMoves, WaitingMoves
from scheduler_worker.waiting.owner import Keeping
from scheduler_worker.waiting.queue import Says, WaitingQueue
from scheduler_worker.waiting.store import HostChanges, WaitingStore
from scheduler_worker.what_if import WhatIfs
from scheduler_worker.what_if_moves import WhatIfsOfMoves

BEAT_SECONDS = 1.0
SWEEP_SECONDS = 60.0
PRUNE_SECONDS = 3600.0
MEASURE_SECONDS = 15.0
RECORD_SECONDS = 1.0  # after which a change of a host is stored at the latest
MOVES_AT_ONCE = 128
TRIES_UNHEARD = 3  # attempts to publish a build to its conductor before its age is checked


def scheduler_worker(
    source: CandidateSource,
    placement: PlacementQueries,
    cells: CellQueries,
    database: Database,
    say: Says,
    clock: Clock,
    options: SchedulerOptions,
    loaded: Callable[[], Awaitable[None]],
) -> Worker:
    """Return the worker, which starts once `loaded` has returned."""
    scheduler = Scheduler(source, placement, clock, options)
    what_ifs = WhatIfs(scheduler)
    signal = WaitingSignal(scheduler.roster, say)
    sight = Sight(source, scheduler.policy, scheduler.hosts_now, scheduler.alternatives_of)
    related = RelatedHosts(scheduler.resolved)
    store = WaitingStore(
        database, scheduler.roster.name, clock, sight, scheduler.begin_stored, related, signal.changed
    )
    scheduler.leave_out_reserved(store.released, store.without_reserved)
    handovers = Handovers(database, placement, scheduler.ending, clock)
    lookups = MoveLookups(source, scheduler.ending, placement, cells)
    courses = MoveCourses(scheduler, lookups, handovers, store.keep_refusals)
    unheard = UnheardMoves(courses, handovers)
    queue = WaitingQueue(
        store,
        WaitingBuilds(scheduler, store),
        WaitingMoves(scheduler, store, courses, unheard),
        say,
        clock,
    )
    changes = HostChanges(scheduler, store, queue.recheck)
    keeping = Keeping(queue, clock)
    cancelling = Cancelling(store, scheduler.ending, placement, say, clock)
    moves = MoveArrivals(courses, NewMoves(scheduler, store, courses, clock).arriving)
    parts = [
        _host_records(HostRecords(scheduler.book, source, database, clock)),
        _those_that_wait(queue, signal, cancelling, keeping),
        _clients(ClientDoor(database, placement, cells, keeping, what_ifs, source)),
        _other_halves(handovers, options.concurrency),
        _moves(moves, unheard, WhatIfsOfMoves(scheduler, what_ifs, courses), options.concurrency),
    ]
    return Worker(
        "scheduler",
        consumes=[
            on_many(
                topics.BUILD_REQUESTED,
                NewBuilds(scheduler, store, clock).place_many,
                emits=[topics.BUILD_PLACED, topics.BUILD_UNPLACEABLE],
                batch=options.batch,
                concurrency=options.concurrency,
                unheard=scheduler.ending.take_back,
                unheard_after=TRIES_UNHEARD,
            ),
            on(topics.HOST_REPORTED, changes.handle, private=True),
            on(topics.HOST_FAILED, scheduler.hear_of_failure, private=True),
            on(topics.SCHEDULER_ALIVE, scheduler.roster.handle, private=True),
            *[row for part in parts for row in part.consumes],
        ],
        answers=[answers(topics.WHAT_IF, what_ifs.answer), *[row for part in parts for row in part.answers]],
        asks=[
            topics.CLAIM,
            topics.RELEASE,
            topics.PROVIDERS,
            topics.GROUPS,
            topics.ALLOCATIONS,
            topics.FIND_BUILDS,
            *[query for part in parts for query in part.asks],
        ],
        timers=[
            every(SAYS_SECONDS, scheduler.roster.say, emits=[topics.SCHEDULER_ALIVE], at_once=True),
            *[timer for part in parts for timer in part.timers],
        ],
        starts=[
            loaded,
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
    return _Part(
        answers=[answers(topics.HOST_HEALTH, records.find)],
        starts=[records.load],
        timers=[
            every(RECORD_SECONDS, records.store),
            every(MEASURE_SECONDS, records.measure),
            every(PRUNE_SECONDS, records.prune),
        ],
    )


def _those_that_wait(
    queue: WaitingQueue, signal: WaitingSignal, cancelling: Cancelling, keeping: Keeping
) -> _Part:
    return _Part(
        consumes=[on(topics.BUILD_CANCEL, cancelling.cancel, emits=[topics.BUILD_DELETE])],
        answers=[answers(topics.WAITING, keeping.waiting), answers(topics.DECISION, keeping.decision)],
        timers=[
            every(BEAT_SECONDS, keeping.beat, at_once=True),
            every(SWEEP_SECONDS, keeping.sweep),
            every(PRUNE_SECONDS, keeping.prune),
        ],
        runs=[queue.run, signal.run],
        stops=[keeping.let_go],
        announces=frozenset(
            {BuildPlaced, BuildUnplaceable, BuildCancelled, MovePlaced, MoveRefused, SchedulerAlive}
        ),
    )


def _clients(door: ClientDoor) -> _Part:
    return _Part(
        consumes=[
            on_many(
                topics.CLIENT_REQUESTED,
                door.request_many,
                emits=[
                    topics.BUILD_REQUESTED,
                    topics.BUILD_CANCEL,
                    topics.MOVE_REQUESTED,
                    topics.MOVE_STEER,
                    topics.BUILD_UNPLACEABLE,
                    topics.BUILD_CANCELLED,
                    topics.MOVE_REFUSED,
                    topics.MOVE_TOLD,
                ],
                concurrency=4,  # a lookup in a silent cell must not stop the other clients
            )
        ],
        answers=[
            answers(topics.CLIENT_ASKED, door.ask, concurrency=16, client="*"),
            answers(topics.CLIENTS, door.clients),
            answers(topics.EDIT_CLIENT, door.edit),
        ],
        asks=[topics.USAGES, topics.FIND_INSTANCES, topics.FIND_MOVES],
    )


def _other_halves(handovers: Handovers, concurrency: int) -> _Part:
    return _Part(
        consumes=[
            on_many(
                topics.MOVE_HALF,
                handovers.handle_many,
                emits=[topics.MOVE_PLACED, topics.MOVE_HANDOVER, topics.BUILD_DELETE],
                batch=MOVES_AT_ONCE,
                concurrency=concurrency,
                unheard=handovers.unheard,
                unheard_after=TRIES_UNHEARD,
            )
        ],
        timers=[
            every(TELL_AGAIN_SECONDS, handovers.tell_again, emits=[topics.MOVE_HANDOVER]),
            every(PRUNE_SECONDS, handovers.prune),
        ],
    )


def _moves(moves: MoveArrivals, unheard: UnheardMoves, what_ifs: WhatIfsOfMoves, concurrency: int) -> _Part:
    return _Part(
        consumes=[
            on_many(
                topics.MOVE_REQUESTED,
                moves.place_many,
                emits=[topics.MOVE_PLACED, topics.MOVE_REFUSED, topics.MOVE_HANDOVER],
                batch=MOVES_AT_ONCE,
                concurrency=concurrency,
                unheard=unheard.take_back,
                unheard_after=TRIES_UNHEARD,
            )
        ],
        answers=[answers(topics.WHAT_IF_MOVES, what_ifs.answer)],
    )
