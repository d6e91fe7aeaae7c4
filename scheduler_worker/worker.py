"""The scheduler's table: consumed messages, queries to placement, published messages."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bus import topics
from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.messages import BuildCancelled, BuildPlaced, BuildUnplaceable, SchedulerAlive
from bus.moves import MovePlaced, MoveRefused
from bus.sql.database import Database
from bus.vocabulary import Message
from bus.worker import Worker, answers, every, on, on_many
from scheduler_worker.cancelling import Cancelling
from scheduler_worker.client_door import ClientDoor
from scheduler_worker.dependencies import CellQueries, PlacementQueries, Says, SchedulerOptions
from scheduler_worker.handovers import TELL_AGAIN_SECONDS, Handovers
from scheduler_worker.host_records import HostRecords
from scheduler_worker.move_courses import MoveCourses
from scheduler_worker.move_lookups import MoveLookups
from scheduler_worker.placing import Scheduler
from scheduler_worker.roster import SAYS_SECONDS, WaitingSignal
from scheduler_worker.waiting.builds import NewBuilds, WaitingBuilds
from scheduler_worker.waiting.moves import NewMoves, UnheardMoves, WaitingMoves
from scheduler_worker.waiting.owner import Keeping
from scheduler_worker.waiting.queue import WaitingQueue
from scheduler_worker.waiting.store import HostChanges, WaitingStore
from scheduler_worker.what_if import WhatIfs, WhatIfsOfMoves

BEAT_SECONDS = 1.0
SWEEP_SECONDS = 60.0
PRUNE_SECONDS = 3600.0
MEASURE_SECONDS = 15.0
RECORD_SECONDS = 1.0  # after which a change of a host is stored at the latest
MOVES_AT_ONCE = 128
TRIES_UNHEARD = 3  # attempts to publish a build to its conductor before its age is checked
ANNOUNCED: frozenset[type[Message]] = frozenset(
    {BuildPlaced, BuildUnplaceable, BuildCancelled, MovePlaced, MoveRefused, SchedulerAlive}
)
ASKED = (
    topics.CLAIM,
    topics.RELEASE,
    topics.PROVIDERS,
    topics.GROUPS,
    topics.ALLOCATIONS,
    topics.FIND_BUILDS,
)


@dataclass(frozen=True, kw_only=True)
class SchedulerNeeds:
    """The collaborators of a scheduler: queries, database, index and settings. The scheduler starts once
    `loaded` has returned.
    """

    source: CandidateSource
    placement: PlacementQueries
    cells: CellQueries
    database: Database
    say: Says
    clock: Clock
    options: SchedulerOptions = field(default_factory=SchedulerOptions)
    loaded: Callable[[], Awaitable[None]]


def scheduler_worker(needs: SchedulerNeeds) -> Worker:
    source, placement, database, clock = needs.source, needs.placement, needs.database, needs.clock
    scheduler = Scheduler(source, placement, clock, needs.options)
    what_ifs = WhatIfs(scheduler)
    signal = WaitingSignal(scheduler.roster, needs.say)
    store = WaitingStore(scheduler, database, signal.changed)
    scheduler.leave_out_reserved(store.released, store.without_reserved)
    handovers = Handovers(database, placement, scheduler.ending, clock)
    lookups = MoveLookups(source, scheduler.ending, placement, needs.cells)
    courses = MoveCourses(scheduler, lookups, handovers, store.keep_refusals)
    unheard = UnheardMoves(courses, handovers)
    evaluators = WaitingBuilds(scheduler, store), WaitingMoves(store, courses, unheard)
    queue = WaitingQueue(store, *evaluators, needs.say, clock)
    keeping = Keeping(queue, clock)
    cancelling = Cancelling(store, scheduler.ending, placement, needs.say)
    concurrency = needs.options.concurrency
    parts = [
        Worker("", starts=[needs.loaded], asks=ASKED),
        _builds(scheduler, store, HostChanges(scheduler, store, queue.recheck), needs.options),
        _host_records(HostRecords(scheduler.book, source, database, clock)),
        _waiting_requests(queue, signal, cancelling, keeping),
        _clients(ClientDoor(database, placement, needs.cells, keeping, what_ifs, source)),
        _handovers(handovers, concurrency),
        _moves(NewMoves(store, courses), unheard, WhatIfsOfMoves(what_ifs, courses), concurrency),
        Worker("", answers=[answers(topics.WHAT_IF, what_ifs.answer)], starts=[scheduler.opened]),
    ]
    rows = ("consumes", "answers", "asks", "timers", "starts", "runs", "stops")
    table: dict[str, Any] = {name: [row for part in parts for row in getattr(part, name)] for name in rows}
    return Worker("scheduler", announces=ANNOUNCED, **table)


def _builds(
    scheduler: Scheduler, store: WaitingStore, changes: HostChanges, options: SchedulerOptions
) -> Worker:
    return Worker(
        "",
        consumes=[
            on_many(
                topics.BUILD_REQUESTED,
                NewBuilds(scheduler, store).place_many,
                emits=[topics.BUILD_PLACED, topics.BUILD_UNPLACEABLE],
                batch=options.batch,
                concurrency=options.concurrency,
                unheard=scheduler.ending.take_back,
                unheard_after=TRIES_UNHEARD,
            ),
            on(topics.HOST_REPORTED, changes.handle, private=True),
            on(topics.HOST_FAILED, scheduler.hear_of_failure, private=True),
            on(topics.SCHEDULER_ALIVE, scheduler.roster.handle, private=True),
        ],
        timers=[every(SAYS_SECONDS, scheduler.roster.say, emits=[topics.SCHEDULER_ALIVE], at_once=True)],
    )


def _host_records(records: HostRecords) -> Worker:
    return Worker(
        "",
        answers=[answers(topics.HOST_HEALTH, records.find)],
        starts=[records.load],
        timers=[
            every(RECORD_SECONDS, records.store),
            every(MEASURE_SECONDS, records.measure),
            every(PRUNE_SECONDS, records.prune),
        ],
    )


def _waiting_requests(
    queue: WaitingQueue, signal: WaitingSignal, cancelling: Cancelling, keeping: Keeping
) -> Worker:
    return Worker(
        "",
        consumes=[on(topics.BUILD_CANCEL, cancelling.cancel, emits=[topics.BUILD_DELETE])],
        answers=[answers(topics.WAITING, keeping.waiting), answers(topics.DECISION, keeping.decision)],
        timers=[
            every(BEAT_SECONDS, keeping.beat, at_once=True),
            every(SWEEP_SECONDS, keeping.sweep),
            every(PRUNE_SECONDS, keeping.prune),
        ],
        runs=[queue.run, signal.run],
        stops=[keeping.let_go],
    )


def _clients(door: ClientDoor) -> Worker:
    return Worker(
        "",
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


def _handovers(handovers: Handovers, concurrency: int) -> Worker:
    return Worker(
        "",
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


def _moves(moves: NewMoves, unheard: UnheardMoves, what_ifs: WhatIfsOfMoves, concurrency: int) -> Worker:
    return Worker(
        "",
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
