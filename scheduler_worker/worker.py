"""The scheduler's table: what it hears, what it asks of placement, what it says."""

from collections.abc import Awaitable, Callable

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.messages import (
    AllocationsFound,
    FindAllocations,
    FindGroups,
    FindProviders,
    GroupsFound,
    ProvidersFound,
    ReleaseAnswered,
    ReleaseRequested,
)
from bus.protocol import Ask
from bus.topics import (
    ALLOCATIONS,
    BUILD_PLACED,
    BUILD_REQUESTED,
    BUILD_UNPLACEABLE,
    CLAIM,
    GROUPS,
    HOST_FAILED,
    HOST_REPORTED,
    PROVIDERS,
    RELEASE,
    SCHEDULER_ALIVE,
)
from bus.worker import Worker, every, on, on_many
from scheduler_worker.core.placing import PATIENCE
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.request_options import RequestOptions
from scheduler_worker.ending import UNHEARD_SECONDS
from scheduler_worker.hosts import GRACE
from scheduler_worker.placing import Claims, Scheduler
from scheduler_worker.roster import SAYS_SECONDS

TRIES_UNHEARD = 3  # to hand a build to its cell's conductor, before it is looked at how long that went on


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
    batch: int = 512,
    concurrency: int = 2,
    unheard_for: float = UNHEARD_SECONDS,
    groups: Ask[FindGroups, GroupsFound] | None = None,
    allocations: Ask[FindAllocations, AllocationsFound] | None = None,
    options: RequestOptions | None = None,
    loaded: Callable[[], Awaitable[None]] | None = None,
) -> Worker:
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
    return Worker(
        "scheduler",
        consumes=[
            on_many(
                BUILD_REQUESTED,
                scheduler.place_many,
                emits=[BUILD_PLACED, BUILD_UNPLACEABLE],
                batch=batch,
                concurrency=concurrency,
                unheard=scheduler.ending.take_back,
                unheard_after=TRIES_UNHEARD,
            ),
            on(HOST_REPORTED, scheduler.hear, private=True),
            on(HOST_FAILED, scheduler.hear_of_failure, private=True),
            on(SCHEDULER_ALIVE, scheduler.roster.hear, private=True),
        ],
        asks=[CLAIM, RELEASE, PROVIDERS, GROUPS, ALLOCATIONS],
        timers=[every(SAYS_SECONDS, scheduler.roster.say, emits=[SCHEDULER_ALIVE], at_once=True)],
        starts=[scheduler.opened] if loaded is None else [loaded, scheduler.opened],
    )
