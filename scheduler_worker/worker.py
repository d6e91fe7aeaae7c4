"""The scheduler's table: what it hears, what it asks of placement, what it says."""

from bus.clock import Clock
from bus.messages import (
    CandidatesFound,
    FindCandidates,
    FindProviders,
    ProvidersFound,
    ReleaseAnswered,
    ReleaseRequested,
)
from bus.protocol import Ask
from bus.topics import (
    BUILD_PLACED,
    BUILD_REQUESTED,
    BUILD_UNPLACEABLE,
    CLAIM,
    FIND_CANDIDATES,
    HOST_FAILED,
    HOST_REPORTED,
    PROVIDERS,
    RELEASE,
)
from bus.worker import Worker, on, on_many
from scheduler_worker.core.former_policy import FormerPolicy as ChoicePolicy
from scheduler_worker.ending import UNHEARD_SECONDS
from scheduler_worker.hosts import GRACE
from scheduler_worker.placing import PAGE, Claims, Scheduler
from scheduler_worker.waiting import PATIENCE

TRIES_UNHEARD = 3  # to hand a build to its cell's conductor, before it is looked at how long that went on


def scheduler_worker(
    candidates: Ask[FindCandidates, CandidatesFound],
    claim_many: Claims,
    release: Ask[ReleaseRequested, ReleaseAnswered],
    providers: Ask[FindProviders, ProvidersFound],
    policy: ChoicePolicy | None = None,
    clock: Clock | None = None,
    *,
    page: int = PAGE,
    patience: float = PATIENCE,
    grace: float = GRACE,
    batch: int = 128,
    concurrency: int = 2,
    unheard_for: float = UNHEARD_SECONDS,
) -> Worker:
    scheduler = Scheduler(
        candidates,
        claim_many,
        release,
        providers,
        policy,
        clock,
        page=page,
        patience=patience,
        grace=grace,
        unheard_for=unheard_for,
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
        ],
        asks=[FIND_CANDIDATES, CLAIM, RELEASE, PROVIDERS],
        starts=[scheduler.opened],
    )
