"""Declares the messages that the scheduler consumes and publishes, its replies to queries, and its timers."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bus import topics
from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.delivery.recording import RecordingBus
from bus.guests import GuestsAsked
from bus.messages import BuildCancelled, BuildPlaced, BuildUnplaceable, SchedulerAlive
from bus.moves import MovePlaced, MoveRefused
from bus.quotas import WEIGHT, FindQuotas
from bus.sql.database import Database
from bus.vocabulary import Message
from bus.worker import Every, On, Worker, answers, answers_many, every, on, on_many, prune_period
from scheduler_worker.agents import SAYS_SECONDS, WaitingSignal
from scheduler_worker.audit_trail import AuditTrail
from scheduler_worker.backlog import CALLS_OF_LIGHT, PREFETCH, RequestBacklog
from scheduler_worker.balance_planning import BalancePlanner
from scheduler_worker.capacity_samples import CHECK_SECONDS, CapacitySampler
from scheduler_worker.client_door import ClientDoor
from scheduler_worker.composition import usual_narrowings
from scheduler_worker.dependencies import Publish, SchedulerOptions
from scheduler_worker.exchanges import CHECK_SECONDS as EXCHANGE_SECONDS
from scheduler_worker.exchanges import ExchangeGuard
from scheduler_worker.extension import Fallback
from scheduler_worker.handovers import REPEAT_SECONDS, Handovers
from scheduler_worker.host_holds import OPEN_SECONDS, HostHolds
from scheduler_worker.host_records import HostRecords
from scheduler_worker.known_hosts import KnownHosts
from scheduler_worker.maintenance.controller import STEP_SECONDS, MaintenanceController, MaintenanceNeeds
from scheduler_worker.maintenance.quorum import FENCING
from scheduler_worker.move_courses import MoveCourses
from scheduler_worker.move_lookups import MoveLookups
from scheduler_worker.orders import Orders
from scheduler_worker.owners import Owners
from scheduler_worker.placing import Scheduler
from scheduler_worker.policy_trials import PolicyTrials
from scheduler_worker.priorities import PriorityClasses
from scheduler_worker.queries import CellQueries, PlacementQueries
from scheduler_worker.reservations import REFRESH_SECONDS, ReservationFiller
from scheduler_worker.role_door import RoleDoor
from scheduler_worker.room_planning import RoomPlanner
from scheduler_worker.selecting import HostSelection
from scheduler_worker.victim_search import VictimSearch
from scheduler_worker.waiting.builds import WaitingBuilds
from scheduler_worker.waiting.cancelling import Cancelling
from scheduler_worker.waiting.fallback import WaitingFallback
from scheduler_worker.waiting.held_hosts import HeldHosts
from scheduler_worker.waiting.host_changes import HostChanges
from scheduler_worker.waiting.moves import WaitingMoves
from scheduler_worker.waiting.owner import WaitingOwner
from scheduler_worker.waiting.queue import WaitingQueue
from scheduler_worker.waiting.store import WaitingStore
from scheduler_worker.what_if import WhatIfs
from scheduler_worker.what_if_moves import WhatIfsOfMoves
from scheduler_worker.what_if_preempting import WhatIfsPreempting
from scheduler_worker.what_if_waiting import WhatIfWaits

BEAT_SECONDS = 1.0
SWEEP_SECONDS = 60.0
MEASURE_SECONDS = 15.0
WEIGHTS_SECONDS = 2.0  # maximum delay until a changed weight of a project applies
RECORD_SECONDS = 1.0  # maximum delay until a change of a host is stored
TRIES_UNDELIVERABLE = 3  # attempts to deliver a build to a conductor before the time limit is checked
ANNOUNCED: frozenset[type[Message]] = frozenset(
    {BuildPlaced, BuildUnplaceable, BuildCancelled, MovePlaced, MoveRefused, SchedulerAlive, GuestsAsked}
)
PLACEMENT = (
    topics.CLAIM, topics.RELEASE, topics.PROVIDERS, topics.GROUPS, topics.ALLOCATIONS, topics.USAGES,
    topics.QUOTAS, topics.EDIT, topics.EDIT_NAME, topics.RESERVATIONS, topics.EDIT_RESERVATION,
    topics.PREEMPTIONS,
)  # fmt: skip
CELLS = topics.FIND_BUILDS, topics.FIND_INSTANCES, topics.FIND_MOVES
PASSED_ON = [topics.BUILD_REQUESTED, topics.BUILD_CANCEL, topics.MOVE_REQUESTED, topics.MOVE_STEER]
REFUSED = [topics.BUILD_UNPLACEABLE, topics.BUILD_CANCELLED, topics.MOVE_REFUSED, topics.MOVE_PROGRESS]


@dataclass(frozen=True, kw_only=True)
class SchedulerNeeds:
    """The connections, index and settings of a scheduler. `loaded` waits until the index is loaded."""

    source: CandidateSource
    placement: PlacementQueries
    cells: CellQueries
    database: Database
    bus: RecordingBus  # sends messages of clients with a role, and records their acts
    publish: Publish
    clock: Clock
    options: SchedulerOptions = field(default_factory=SchedulerOptions)
    loaded: Callable[[], Awaitable[None]]


def scheduler_worker(needs: SchedulerNeeds) -> Worker:
    return _Parts(needs).worker()


class _Parts:
    """Creates the handlers of a scheduler, and declares its messages, queries and timers."""

    def __init__(self, needs: SchedulerNeeds) -> None:
        source, placement, database, clock = needs.source, needs.placement, needs.database, needs.clock
        self.needs, self.options = needs, needs.options
        options = needs.options
        self.hosts = hosts = KnownHosts(source, clock, options)
        orders = Orders(source, options.requests, options.policy).follow()
        held = HeldHosts(hosts, orders, options)
        narrowings = [*usual_narrowings(source, placement, clock), held]
        self.priorities = PriorityClasses(database)
        self.victims = VictimSearch(self.priorities, needs.cells)
        fallbacks: list[Fallback] = [self.victims, WaitingFallback()]
        self.scheduler = scheduler = Scheduler(hosts, orders, placement, options, narrowings, fallbacks)
        self.signal = WaitingSignal(hosts.roster, needs.publish)
        store = WaitingStore(scheduler, held, database, self.signal.changed)
        self.handovers = Handovers(database, placement, scheduler.ending, clock)
        lookups = MoveLookups(source, scheduler.ending, placement, needs.cells)
        self.courses = MoveCourses(scheduler, lookups, self.handovers, store.refusals.add_moves)
        self.builds, self.moves = WaitingBuilds(scheduler, store), WaitingMoves(store, self.courses)
        self.queue = WaitingQueue(store, self.builds, self.moves, needs.publish, clock)
        self.backlog = RequestBacklog(store, clock, store.sizes, needs.options.concurrency)
        self.keeping = WaitingOwner(self.queue, self.backlog, clock)
        self.cancelling = Cancelling(store, scheduler.ending, needs.publish)
        self.records = HostRecords(scheduler.book, source, database, clock)
        self.changes = HostChanges(scheduler, store, self.queue.recheck)
        self.what_ifs = WhatIfs(scheduler)
        self.waits = WhatIfWaits(scheduler, store, self.keeping.held)
        self.rooms = RoomPlanner(self.what_ifs, self.courses, needs.cells)
        self.holds = HostHolds(database, placement, source, clock)
        self.exchanges = ExchangeGuard(database, placement, needs.cells, scheduler.ending, clock)
        self.selection = HostSelection(scheduler, database)
        self.filler = ReservationFiller(scheduler)
        maintained = MaintenanceNeeds(
            database=database, placement=placement, cells=needs.cells, source=source, book=scheduler.book,
            clock=clock, publish=needs.publish,
        )  # fmt: skip
        self.maintenance = MaintenanceController(maintained, options.maintenance)
        self.capacity = CapacitySampler(scheduler, orders, database)
        self.roles = RoleDoor(database, needs.bus)
        self.trail = AuditTrail(database, clock, self.options.keep_acts, self.options.keep)
        owners = Owners(database, placement, needs.cells, source)
        self.door = ClientDoor(database, placement, needs.cells, self.keeping, self.what_ifs, owners, clock)

    def worker(self) -> Worker:
        keeping, door = self.keeping, self.door
        return Worker(
            "scheduler",
            announces=ANNOUNCED,
            consumes=[
                *self._requests(),
                on(topics.HOST_REPORTED, self.changes.handle, private=True),
                on(topics.HEARTBEATS_MERGED, self.changes.handle_merged, private=True),
                on(topics.HOST_FAILED, self.scheduler.on_host_failed, private=True),
                on(topics.SCHEDULER_ALIVE, self.hosts.roster.handle, private=True),
                on(topics.AGENT_GUESTS.at(reply_to=FENCING), self.maintenance.quorum.handle, private=True),
                on(topics.BUILD_PREEMPTED, self.victims.requeue, emits=[topics.MOVE_REQUESTED]),
                on(topics.BUILD_CANCEL, self.cancelling.cancel, emits=[topics.BUILD_DELETE]),
                on_many(topics.ACTS_RECORDED, self.trail.record_many),
            ],
            answers=[
                answers(topics.HOST_HEALTH, self.records.find),
                answers(topics.WAITING, keeping.waiting),
                answers(topics.REFUSED, keeping.refused),
                answers(topics.DECISION, keeping.decision),
                answers(topics.CLIENT_ASKED, door.ask, concurrency=16, client="*"),
                answers(topics.CLIENT_RELAY, self.roles.relay, concurrency=16, client="*"),
                answers(topics.CLIENTS, door.clients),
                answers(topics.EDIT_CLIENT, door.edit),
                answers(topics.PROJECTS, door.projects),
                answers(topics.FIND_ACTS, self.trail.find),
                answers(topics.WHAT_IF_MOVES, WhatIfsOfMoves(self.what_ifs, self.courses).answer),
                answers(topics.FILL_RESERVATION, self.filler.fill),
                answers(topics.WHAT_IF, WhatIfsPreempting(self.what_ifs, self.victims, self.waits).answer),
                answers(topics.PRIORITIES, self.priorities.find),
                answers(topics.EDIT_PRIORITY, self.priorities.edit),
                answers(topics.PLAN_ROOM, self.rooms.answer),
                answers(topics.PLAN_BALANCE, BalancePlanner(self.what_ifs, self.rooms).answer),
                answers(topics.HOLD_HOSTS, self.holds.hold),
                answers(topics.GUARD_EXCHANGE, self.exchanges.store),
                answers(topics.SWITCH_BALANCING, self.holds.switch_balancing),
                answers(topics.MAINTENANCE, self.maintenance.find),
                answers(topics.CAPACITY, self.capacity.find),
                answers(topics.EDIT_MAINTENANCE, self.maintenance.edit),
                answers(topics.TRY_POLICY, PolicyTrials(self.what_ifs, self.victims).answer),
                answers_many(topics.SELECT_HOSTS, self.selection.answer_many, concurrency=4),
            ],
            asks=(*PLACEMENT, *CELLS),
            timers=self._timers(),
            starts=[self.needs.loaded, self.records.load, self.scheduler.opened],
            runs=[self.queue.run, self.signal.run, self.backlog.run, self.maintenance.dead_hosts.run_fencing],
            stops=[keeping.release_ownership, self.maintenance.stop],
        )

    def _requests(self) -> list[On]:
        concurrency = self.options.concurrency
        return [
            on_many(
                topics.BUILD_REQUESTED,
                self.builds.place_many,
                emits=[topics.BUILD_PLACED, topics.BUILD_UNPLACEABLE],
                batch=self.options.batch,
                concurrency=concurrency + CALLS_OF_LIGHT,
                unheard=self.scheduler.ending.undo_placed,
                undeliverable_after=TRIES_UNDELIVERABLE,
                intake=self.backlog,
                prefetch=PREFETCH,
            ),
            on_many(
                topics.CLIENT_REQUESTED,
                self.door.request_many,
                emits=[*PASSED_ON, *REFUSED, topics.ACTS_RECORDED],
                concurrency=4,  # so that a query to a silent cell does not delay other clients
            ),
            on_many(
                topics.MOVE_HALF,
                self.handovers.handle_many,
                emits=[topics.MOVE_PLACED, topics.MOVE_HANDOVER, topics.BUILD_DELETE],
                unheard=self.handovers.unheard,
                undeliverable_after=TRIES_UNDELIVERABLE,
                concurrency=concurrency,
            ),
            on_many(
                topics.MOVE_REQUESTED,
                self.moves.place_many,
                emits=[topics.MOVE_PLACED, topics.MOVE_REFUSED, topics.MOVE_HANDOVER],
                unheard=self.courses.undoing.undo_placed,
                undeliverable_after=TRIES_UNDELIVERABLE,
                concurrency=concurrency,
            ),
        ]

    async def _read_weights(self) -> None:
        # also without a backlog: the weights apply from the first request of a flood on
        found = await self.needs.placement.quotas(FindQuotas(weights=True))
        listed = {quota.project: float(quota.limits[WEIGHT]) for quota in found.quotas}
        weights = {project: weight for project, weight in listed.items() if weight >= 1}
        self.backlog.set_weights(weights)
        self.queue.store.queues.set_weights(weights)

    async def _measure_backlog(self) -> None:
        self.backlog.stored.measure()

    def _timers(self) -> list[Every]:
        keeping, records, handovers = self.keeping, self.records, self.handovers
        alive, handover, options = [topics.SCHEDULER_ALIVE], [topics.MOVE_HANDOVER], self.options
        return [
            every(SAYS_SECONDS, self.hosts.roster.message, emits=alive, at_once=True),
            every(RECORD_SECONDS, records.store),
            every(MEASURE_SECONDS, self._measure_backlog),
            every(RECORD_SECONDS, self.selection.store),
            every(MEASURE_SECONDS, records.measure),
            every(REFRESH_SECONDS, self.filler.refresh, at_once=True),
            every(REFRESH_SECONDS, self.priorities.refresh, at_once=True),
            every(BEAT_SECONDS, keeping.beat, at_once=True),
            every(REFRESH_SECONDS, self.queue.retry_preempting),
            every(SWEEP_SECONDS, keeping.sweep),
            every(CHECK_SECONDS, self.capacity.store),
            every(OPEN_SECONDS, self.holds.open_expired),
            every(STEP_SECONDS, self.maintenance.step, emits=[topics.MOVE_REQUESTED]),
            every(EXCHANGE_SECONDS, self.exchanges.step, emits=[topics.MOVE_REQUESTED]),
            every(REPEAT_SECONDS, handovers.repeat_handovers, emits=handover),
            every(WEIGHTS_SECONDS, self._read_weights, at_once=True),
            every(prune_period(), records.prune),
            every(prune_period(options.keep_acts, options.keep), self.trail.prune),
            every(prune_period(options.keep), lambda: keeping.prune(options.keep)),
            every(prune_period(options.keep), lambda: self.maintenance.prune(options.keep)),
            every(prune_period(options.keep), lambda: self.exchanges.prune(options.keep)),
            every(prune_period(options.keep), lambda: handovers.prune(options.keep)),
        ]
