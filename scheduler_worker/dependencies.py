"""The queries of a scheduler to placement and the cells, several at once, and its settings."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bus.claims import ClaimAnswered, ClaimRequested, ReleaseAnswered, ReleaseRequested
from bus.errors import AnswerRefused
from bus.groups import FindGroups, GroupsFound
from bus.moves import FindMoves, MovesFound
from bus.protocol import Ask
from bus.queries import BuildsFound, FindBuilds, FindInstances, InstancesFound
from bus.resources import (
    AllocationsFound,
    FindAllocations,
    FindProviders,
    FindUsages,
    ProvidersFound,
    UsagesFound,
)
from scheduler_worker.core.extra_specs import RequestOptions
from scheduler_worker.core.placing import PATIENCE
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.hosts import GRACE

UNHEARD_SECONDS = 60.0  # a message without a consumer is published again for this time
REQUESTS_AT_ONCE = 1280  # hosts are searched and weighed once for equal requests of a batch

Says = Callable[..., Awaitable[None]]  # publishes messages; returns after the broker's confirm
Claims = Callable[[Sequence[ClaimRequested]], Awaitable[Sequence[ClaimAnswered]]]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PlacementQueries:
    claim_many: Claims
    release: Ask[ReleaseRequested, ReleaseAnswered]
    providers: Ask[FindProviders, ProvidersFound]
    groups: Ask[FindGroups, GroupsFound]
    allocations: Ask[FindAllocations, AllocationsFound]
    usages: Ask[FindUsages, UsagesFound]


@dataclass(frozen=True, kw_only=True)
class CellQueries:
    builds: Ask[FindBuilds, BuildsFound]
    instances: Ask[FindInstances, InstancesFound]
    moves: Ask[FindMoves, MovesFound]


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions:
    policy: ChoicePolicy = field(default_factory=ChoicePolicy)
    requests: RequestOptions = field(default_factory=RequestOptions)
    patience: float = PATIENCE
    grace: float = GRACE
    unheard_for: float = UNHEARD_SECONDS
    batch: int = REQUESTS_AT_ONCE
    concurrency: int = 2


async def together(asks: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all coroutines in parallel, and raise the first failure itself, not a group of exceptions."""
    if len(asks) <= 1:
        return [await ask for ask in asks]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask) for ask in asks]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def claim_each(
    placement: PlacementQueries, questions: list[ClaimRequested]
) -> Sequence[ClaimAnswered | AnswerRefused]:
    """Return one answer for each claim; each is sent alone if placement refuses the list."""
    try:
        return await placement.claim_many(questions)
    except AnswerRefused as problem:
        if len(questions) == 1:
            return [problem]
    return [answer for question in questions for answer in await claim_each(placement, [question])]
