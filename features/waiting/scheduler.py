"""The part of waiting in a scheduler: the queues of requests that wait for a host or for their turn."""

from msgspec import structs

from bus.projects import ClientQuery, FindOwners, ProjectMember, project_of
from bus.queries import FindWaiting, WaitingFound
from bus.worker import WorkerRows, answers, every
from features.waiting.answers import WaitingAnswers
from features.waiting.arrivals import Arrivals
from features.waiting.cancelling import CancelledWaits
from features.waiting.fallback import WaitingFallback
from features.waiting.held_hosts import HeldHosts
from features.waiting.host_changes import HostChanges
from features.waiting.messages import EDIT_WEIGHT
from features.waiting.owned_rows import OwnedRows
from features.waiting.owner import WaitingOwner
from features.waiting.placing import WaitingBuilds
from features.waiting.queue import WaitingQueue
from features.waiting.request_backlog import CALLS_OF_LIGHT, PREFETCH, RequestBacklog
from features.waiting.settings import WaitingSettings
from features.waiting.signal import WaitingSignal
from features.waiting.store import WaitingStore
from scheduler_worker.extension import ForScheduler, RequestIntake, SchedulerNeeds, SchedulerPart

BEAT_SECONDS = 1.0
SWEEP_SECONDS = 60.0
PREEMPTING_SECONDS = 5.0  # between two evaluations of requests that may preempt instances
MEASURE_SECONDS = 15.0
WEIGHTS_SECONDS = 2.0  # maximum delay until a changed weight of a project applies


def of_clients(waits: WaitingAnswers) -> ClientQuery:
    async def find(question: FindWaiting, client: ProjectMember, find_owners: FindOwners) -> WaitingFound:
        project = project_of(client, question.project)
        found = await waits.waiting(structs.replace(question, project=project))
        return WaitingFound(  # a field that is not named here is not for clients
            waiting=tuple(request for request in found.waiting if request.project == project),
            count=found.count,
            kinds=found.kinds,  # of the project
            more=found.more,
            by_project=found.by_project,
            backlog={name: waits for name, waits in found.backlog.items() if name == project},
            shares={name: share for name, share in found.shares.items() if name == project},
            holds=tuple(held for held in found.holds if held.project == project),
        )

    return ClientQuery(FindWaiting, find)


def part(needs: SchedulerNeeds, settings: WaitingSettings) -> SchedulerPart:
    scheduler, options, clock = needs.scheduler, needs.options, needs.scheduler.clock
    held = HeldHosts(scheduler.hosts, scheduler.orders, options, settings.hosts_share)
    signal = WaitingSignal(scheduler.hosts.roster, needs.publish)
    rows = OwnedRows(needs.database, scheduler.hosts.roster.name, held.holds)
    store = WaitingStore(scheduler, held, rows, signal.changed)
    queue = WaitingQueue(store, WaitingBuilds(scheduler, store), needs.publish, clock)
    backlog = RequestBacklog(rows, store.starts, clock, store.sizes, options.concurrency)
    owner = WaitingOwner(queue, backlog, clock)
    waits = WaitingAnswers(store)
    cancelling = CancelledWaits(store, scheduler.ending, needs.publish)
    HostChanges(scheduler, store, queue.recheck)
    store.weights.queues.append(backlog.set_weights)

    async def measure_backlog() -> None:
        backlog.stored.measure()

    return SchedulerPart(
        narrowings=(held,),
        fallbacks=(WaitingFallback(store, Arrivals(scheduler, store), waits, cancelling),),
        client_queries={"waiting": of_clients(waits)},
        offers=(store, waits),
        intake=RequestIntake(inbox=backlog, prefetch=PREFETCH, calls=CALLS_OF_LIGHT),
        rows=WorkerRows(
            answers=[answers(EDIT_WEIGHT, store.weights.edit)],
            timers=[
                every(MEASURE_SECONDS, measure_backlog),
                every(BEAT_SECONDS, owner.beat, at_once=True),
                every(PREEMPTING_SECONDS, queue.retry_preempting),
                every(SWEEP_SECONDS, owner.sweep),
                every(WEIGHTS_SECONDS, store.weights.read, at_once=True),
            ],
            runs=[queue.run, signal.run, backlog.run],
            stops=[owner.release_ownership],
        ),
    )


PART = ForScheduler(part)
