"""Queries of a scheduler to placement and the cells, its settings, and the end of instances."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bus.chunks import portions
from bus.claims import (
    ClaimAnswered,
    ClaimRequested,
    Held,
    ReleaseAnswered,
    Released,
    ReleaseRequested,
    ReleaseResult,
    Retired,
)
from bus.clock import Clock
from bus.errors import AnswerRefused, Retry
from bus.groups import FindGroups, GroupsFound
from bus.messages import BuildPlaced, BuildUnplaceable
from bus.moves import FindMoves, MovesFound
from bus.protocol import Ask
from bus.queries import BuildsFound, FindBuilds, FindInstances, InstancesFound
from bus.resources import (
    AllocationsFound,
    FindAllocations,
    FindProviders,
    FindUsages,
    Provider,
    ProvidersFound,
    UsagesFound,
)
from bus.vocabulary import MAX_CAUSE, Id
from scheduler_worker.core.events import Fence, FenceAnswers, FenceImpossible, Located
from scheduler_worker.core.extra_specs import RequestOptions
from scheduler_worker.core.held_claim import place_of
from scheduler_worker.core.placing import LONGEST_PAUSE, PATIENCE
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


REMEMBERED = 200_000  # requests; the oldest are forgotten
log = logging.getLogger(__name__)
PLACEMENT_ASKED = 500  # ids in one query
UNHEARD = 50_000  # requests without a conductor that are remembered


class RetryTimes:
    """The time since when each request has been retried."""

    def __init__(self, clock: Clock, remembered: int = REMEMBERED) -> None:
        self._clock = clock
        self._remembered = remembered
        self._since: dict[Id, float] = {}

    def retried_for(self, request: Id) -> float:
        """Return for how many seconds the request has been retried; 0 the first time."""
        since = self._since.get(request)
        return 0.0 if since is None else self._clock.monotonic() - since

    def begin(self, request: Id) -> None:
        while len(self._since) >= self._remembered:
            del self._since[next(iter(self._since))]
        self._since.setdefault(request, self._clock.monotonic())

    def end(self, request: Id) -> None:
        self._since.pop(request, None)


class Ending:
    """Ends instances: retires consumers, releases claims, and looks up the hosts of allocations."""

    def __init__(self, placement: PlacementQueries, clock: Clock, unheard_for: float) -> None:
        self._placement = placement
        self._unheard_for = unheard_for
        self._unheard = RetryTimes(clock, UNHEARD)

    async def fence(self, of_each: Sequence[Sequence[Fence]]) -> list[FenceAnswers | FenceImpossible]:
        """Retire consumers in parallel, and return the answers for each order."""
        results = iter(await together([self._fenced(fence) for fences in of_each for fence in fences]))
        answers: list[FenceAnswers | FenceImpossible] = []
        for fences in of_each:
            of_this = [(fence.instance, next(results)) for fence in fences]
            problem = next((one for _, one in of_this if isinstance(one, str)), "")
            if problem:
                answers.append(FenceImpossible(problem))
            else:
                answers.append(FenceAnswers(tuple([(i, r) for i, r in of_this if not isinstance(r, str)])))
        return answers

    async def _fenced(self, fence: Fence) -> ReleaseResult | str:
        try:
            return await self.retire(fence.instance, fence.why, fence.generation)
        except AnswerRefused as problem:
            return f"{fence.instance} cannot be fenced: {problem}"

    async def retire(
        self, consumer: Id, why: str, generation: int | None = None, *, unplaceable: bool = True
    ) -> ReleaseResult:
        """Release a consumer and reject later claims for it; without a reason only return its state."""
        question = ReleaseRequested(
            consumer=consumer, generation=generation, retire=why[:MAX_CAUSE], unplaceable=unplaceable
        )
        return (await self._placement.release(question)).result

    async def held(self, consumers: Iterable[Id]) -> dict[Id, Held]:
        """Return the allocations of consumers that hold any."""
        found: dict[Id, Held] = {}
        for some in portions(dict.fromkeys(consumers), PLACEMENT_ASKED):
            answer = await self._placement.allocations(FindAllocations(consumers=some))
            for consumer in answer.consumers:
                found[consumer.id] = Held(generation=consumer.generation, allocations=consumer.allocations)
        return found

    async def locate(self, of_each: Sequence[Sequence[tuple[Id, Held]]]) -> list[Located]:
        providers = await self.look_up([held for of_one in of_each for _, held in of_one])
        return [
            Located({instance: place_of(held, providers) for instance, held in of_one}) for of_one in of_each
        ]

    async def look_up(self, every: Sequence[Held]) -> dict[str, Provider]:
        """Return the providers of existing allocations with their agents."""
        ids = dict.fromkeys(provider for held in every for provider in held.allocations)
        questions = [
            FindProviders(ids=some, parts=("traits", "owner")) for some in portions(ids, PLACEMENT_ASKED)
        ]
        answers = [await self._placement.providers(question) for question in questions]
        return {provider.id: provider for answer in answers for provider in answer.providers}

    async def take_back(self, placed: BuildPlaced) -> BuildUnplaceable | None:
        """Retry a placed build whose cell has no conductor for a time; then release its claim and end it."""
        self.wait_for_ears(placed.request, placed.cell)
        host = placed.chosen.host
        why = f"cell {placed.cell!r}: no conductor takes builds there; the claim on {host} was given back"
        match await self.retire(placed.build, why, placed.generation):
            case Released():
                log.warning("build %s: %s", placed.build, why)
            case Retired(why=told, unplaceable=True):
                why = told
            case Retired():
                return None
            case _:
                raise Retry(after=LONGEST_PAUSE, why=f"the claim of {placed.build} is contended")
        return BuildUnplaceable(
            request=placed.request,
            instances=(placed.build,),
            reason=why,
            decision=placed.decision,
            reply_to=placed.reply_to,
        )

    def wait_for_ears(self, request: Id, cell: str) -> None:
        """Raise `Retry` while a message has had no consumer for less than a limited time."""
        self._unheard.begin(request)
        left = self._unheard_for - self._unheard.retried_for(request)
        if left > 0:
            raise Retry(after=min(left, LONGEST_PAUSE), why=f"no conductor of cell {cell!r} hears of it")
