"""Declares the messages that the scheduler consumes and publishes, its replies to queries, and its timers."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from bus import topics
from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.delivery.recording import RecordingBus
from bus.messages import BuildCancelled, BuildPlaced, BuildUnplaceable, SchedulerAlive
from bus.sql.database import Database
from bus.vocabulary import Message
from bus.worker import Worker, answers, every, on, on_many, prune_period
from scheduler_worker.audit_trail import AuditTrail
from scheduler_worker.cancelling import Cancelling
from scheduler_worker.composition import PartsOf, needs_of
from scheduler_worker.dependencies import PLACED_EMITS, TRIES_UNDELIVERABLE, SchedulerOptions
from scheduler_worker.explanations import Explanations
from scheduler_worker.host_records import DemandRecords, HostRecords
from scheduler_worker.known_hosts import KnownHosts
from scheduler_worker.owners import Owners
from scheduler_worker.placing.new_requests import NewRequests
from scheduler_worker.placing.orders import Orders
from scheduler_worker.placing.part import RequestIntake, SchedulerPart
from scheduler_worker.placing.scheduler import Scheduler
from scheduler_worker.queries import CellQueries, PlacementQueries
from scheduler_worker.refusals import RefusalRecords
from scheduler_worker.roster import SAYS_SECONDS

MEASURE_SECONDS = 15.0
DEMAND_SECONDS = 30.0  # between two exchanges of the usual shapes with other schedulers
RECORD_SECONDS = 1.0  # maximum delay until a change of a host is stored
ANNOUNCED: frozenset[type[Message]] = frozenset(
    {BuildPlaced, BuildUnplaceable, BuildCancelled, SchedulerAlive}
)
PLACEMENT = (
    topics.CLAIM, topics.RELEASE, topics.PROVIDERS, topics.ALLOCATIONS, topics.USAGES, topics.EDIT,
    topics.EDIT_NAME,
)  # fmt: skip
CELLS = topics.FIND_BUILDS, topics.FIND_INSTANCES


@dataclass(frozen=True, kw_only=True)
class SchedulerConnections:
    """The connections, index and settings of a scheduler. `loaded` waits until the index is loaded."""

    source: CandidateSource
    placement: PlacementQueries
    cells: CellQueries
    database: Database
    bus: RecordingBus  # checks and records what features send for a caller
    clock: Clock
    options: SchedulerOptions = field(default_factory=SchedulerOptions)
    loaded: Callable[[], Awaitable[None]]


def scheduler_worker(given: SchedulerConnections, parts_of: PartsOf) -> Worker:
    """Return a scheduler. `parts_of` returns the parts of its features, in the order of their list."""
    source, placement, database, clock = given.source, given.placement, given.database, given.clock
    options = given.options
    hosts = KnownHosts(source, clock, options.grace, options.policy.cells)
    orders = Orders(source, options.requests, options.policy).follow()

    def parts(scheduler: Scheduler) -> Sequence[SchedulerPart]:
        bus = given.bus
        needs = needs_of(
            scheduler, given.cells, database, publish=bus.publish, asker=bus.asker, options=options
        )
        return parts_of(needs)

    scheduler = Scheduler(hosts, orders, placement, options, parts)
    records = HostRecords(scheduler.book, source, database, clock)
    demand = DemandRecords(hosts.demand, database, clock)
    trail = AuditTrail(database, clock, options.keep_acts, options.keep)
    explanations = Explanations(database, scheduler)
    requests = NewRequests(scheduler, RefusalRecords(database, scheduler.clock))
    cancelling = Cancelling(scheduler.ending, scheduler.fallbacks)
    intake = intake_of(scheduler.parts)
    worker = Worker(
        "scheduler",
        announces=ANNOUNCED,
        consumes=[
            on_many(
                topics.BUILD_REQUESTED,
                requests.place_many,
                emits=PLACED_EMITS,
                batch=options.batch,
                concurrency=options.concurrency + intake.calls,
                on_unroutable=scheduler.ending.undo_placed,
                undeliverable_after=TRIES_UNDELIVERABLE,
                intake=intake.inbox,
                prefetch=intake.prefetch,
            ),
            on(topics.HOST_REPORTED, scheduler.handle, private=True),
            on(topics.BUILD_CANCEL, cancelling.cancel, emits=[topics.BUILD_CANCELLED, topics.BUILD_DELETE]),
            on(topics.HOST_FAILED, scheduler.on_host_failed, private=True),
            on(topics.SCHEDULER_ALIVE, hosts.roster.handle, private=True),
            on_many(topics.ACTS_RECORDED, trail.record_many),
            on_many(topics.PROCESS_RESTARTED, trail.record_restarts),
        ],
        answers=[
            answers(topics.HOST_HEALTH, records.find),
            answers(topics.WAITING, explanations.waiting),
            answers(topics.REFUSED, explanations.refused),
            answers(topics.DECISION, explanations.decision),
            answers(topics.PROJECTS, Owners(database, given.cells, scheduler).find),
            answers(topics.FIND_ACTS, trail.find),
        ],
        asks=(*PLACEMENT, *CELLS),
        timers=[
            every(SAYS_SECONDS, hosts.roster.message, emits=[topics.SCHEDULER_ALIVE], at_once=True),
            every(RECORD_SECONDS, records.store),
            every(MEASURE_SECONDS, records.measure),
            every(DEMAND_SECONDS, demand.store, at_once=True),
            every(prune_period(), records.prune),
            every(prune_period(options.keep), lambda: explanations.prune(options.keep)),
            every(prune_period(options.keep_acts, options.keep), trail.prune),
        ],
        starts=[given.loaded, records.load, scheduler.opened],
    )
    return worker.with_rows([part.rows for part in scheduler.parts])


def intake_of(parts: Sequence[SchedulerPart]) -> RequestIntake:
    """Return the intake of the feature that orders new requests; without one, in the order of arrival."""
    intakes = [part.intake for part in parts if part.intake is not None]
    if len(intakes) > 1:
        raise ValueError("only one feature may order the intake of build requests")
    return intakes[0] if intakes else RequestIntake()
