"""Provides a scheduler's settings, the times of its retries, and the ends of its requests."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bus import claims, resources, topics
from bus.clock import Clock
from bus.errors import AnswerRefused, Retry
from bus.messages import BuildPlaced, BuildUnplaceable
from bus.vocabulary import KEEP_ACTS_SECONDS, KEEP_SECONDS, Id, cause_of, portions
from scheduler_worker.core.events import Fence, FenceAnswers, FenceImpossible
from scheduler_worker.core.existing_claims import place_of
from scheduler_worker.core.order import Order
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.request import RequestOptions
from scheduler_worker.core.step import LONGEST_PAUSE, PATIENCE
from scheduler_worker.hosts import GRACE
from scheduler_worker.queries import PlacementQueries

UNDELIVERABLE_SECONDS = 60.0  # seconds for which a message that no conductor receives is published again
# Topics of the messages that end a new request, or answer a repeated one.
PLACED_EMITS = (topics.BUILD_PLACED, topics.BUILD_UNPLACEABLE, topics.BUILD_END, topics.BUILD_CONFLICT)
TRIES_UNDELIVERABLE = 3  # attempts to deliver a build to a conductor before the time limit is checked
REQUESTS_AT_ONCE = 1280  # requests in a batch; equal requests share one search and evaluation
REMEMBERED = 200_000  # retried requests whose first retry is remembered
MOST_UNDELIVERED = 50_000  # requests whose messages no conductor receives, remembered for the time limit
PLACEMENT_ASKED = 500  # ids in one query to placement

Publish = Callable[..., Awaitable[None]]  # publishes messages; returns after the broker's confirm
T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions:
    """How a scheduler chooses, how long it retries, and what it records."""

    policy: ChoicePolicy = field(default_factory=ChoicePolicy)
    requests: RequestOptions = field(default_factory=RequestOptions)
    patience: float = PATIENCE
    grace: float = GRACE
    undeliverable_for: float = UNDELIVERABLE_SECONDS
    batch: int = REQUESTS_AT_ONCE
    concurrency: int = 2
    # seconds for which decisions, ended moves between cells, and acts of clients and services are stored
    keep: float = KEEP_SECONDS
    keep_acts: float = KEEP_ACTS_SECONDS  # seconds for which audit records of operators are stored


async def together(asks: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all coroutines in parallel; after all have ended, raise the first error.

    Up to Python 3.12 a TaskGroup that fails leaves the calling task with a cancellation request. The next
    `asyncio.timeout` that expires in this task would then raise CancelledError and end the task.
    """
    if len(asks) <= 1:
        return [await ask for ask in asks]
    results = await asyncio.gather(*asks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def providers_of(
    placement: PlacementQueries, ids: Iterable[Id], parts: tuple[Any, ...]
) -> dict[Id, resources.Provider]:
    """Return from placement, by id, the given parts (such as traits) of the providers `ids`."""
    found: dict[Id, resources.Provider] = {}
    for some in portions(ids, PLACEMENT_ASKED):
        answer = await placement.providers(resources.FindProviders(ids=some, parts=parts))
        found |= {provider.id: provider for provider in answer.providers}
    return found


Prepare = Callable[[Sequence[Order]], Awaitable[Sequence[Order]]]


async def prepared_in_parts(orders: Sequence[Order], prepare: Prepare) -> list[Order]:
    """Return what `prepare` returns for all orders together. If placement refuses its query, half of the
    orders are prepared at a time, and so on down to single orders.
    """
    try:
        return list(await prepare(orders))
    except AnswerRefused as problem:
        if len(orders) == 1:
            return [orders[0].with_invalid(f"hints: placement cannot find what they name: {problem}")]
    middle = len(orders) // 2
    parts = orders[:middle], orders[middle:]
    return [answer for part in parts for answer in await prepared_in_parts(part, prepare)]


class RetryTimes:
    """Records when each request was first retried, because retries have a time limit."""

    def __init__(self, clock: Clock, remembered: int = REMEMBERED) -> None:
        self._clock = clock
        self._remembered = remembered
        self._since: dict[Id, float] = {}

    def retried_for(self, request: Id) -> float:
        """Return the seconds since the first retry of the request; 0 if there was none."""
        now = self._clock.monotonic()
        return now - self._since.get(request, now)

    def begin(self, request: Id) -> None:
        """Record the first retry of a request; later retries change nothing."""
        while len(self._since) >= self._remembered:
            del self._since[next(iter(self._since))]
        self._since.setdefault(request, self._clock.monotonic())

    def end(self, request: Id) -> None:
        """Forget a request that has ended."""
        self._since.pop(request, None)


class HeldAllocations:
    """Reads what instances hold, and on which hosts."""

    def __init__(self, placement: PlacementQueries) -> None:
        self._placement = placement

    async def held(self, consumers: Iterable[Id]) -> dict[Id, claims.Held]:
        """Return generation and allocations of each consumer that has allocations."""
        found: dict[Id, claims.Held] = {}
        for some in portions(dict.fromkeys(consumers), PLACEMENT_ASKED):
            answer = await self._placement.allocations(resources.FindAllocations(consumers=some))
            for consumer in answer.consumers:
                held = claims.Held(generation=consumer.generation, allocations=consumer.allocations)
                found[consumer.id] = held
        return found

    async def hosts_of(self, consumers: Iterable[Id]) -> dict[Id, str]:
        """Return the root of the host of each consumer that has allocations on a host with an agent."""
        held = await self.held(consumers)
        providers = await self.look_up(list(held.values()))
        places = {id_: place_of(each, providers) for id_, each in held.items()}
        return {id_: place.root for id_, place in places.items() if place is not None}

    async def look_up(self, every: Sequence[claims.Held]) -> dict[str, resources.Provider]:
        """Read from placement the providers that the given allocations name; return them by id."""
        ids = dict.fromkeys(provider for held in every for provider in held.allocations)
        return await providers_of(self._placement, ids, ("traits", "owner"))


class Ending(HeldAllocations):
    """Ends instances: retires their consumers and releases their claims."""

    def __init__(self, placement: PlacementQueries, clock: Clock, undeliverable_for: float) -> None:
        super().__init__(placement)
        self._undeliverable_for = undeliverable_for
        self._undelivered = RetryTimes(clock, MOST_UNDELIVERED)

    async def fence(self, of_each: Sequence[Sequence[Fence]]) -> list[FenceAnswers | FenceImpossible]:
        """Retire the consumers of all orders in parallel; return for each order placement's answers, or why a
        consumer cannot be retired.
        """
        results = iter(await together([self._fenced(fence) for fences in of_each for fence in fences]))
        answers: list[FenceAnswers | FenceImpossible] = []
        for fences in of_each:
            of_this = [(fence.instance, next(results)) for fence in fences]
            problem = next((outcome for _, outcome in of_this if isinstance(outcome, str)), "")
            if problem:
                answers.append(FenceImpossible(problem))
            else:
                answers.append(FenceAnswers(tuple([(i, r) for i, r in of_this if not isinstance(r, str)])))
        return answers

    async def _fenced(self, fence: Fence) -> claims.ReleaseResult | str:
        """Retire an instance; return placement's result, or why it refused to judge the order."""
        try:
            return await self.retire(fence.instance, fence.why, fence.generation)
        except AnswerRefused as problem:
            return f"{fence.instance} cannot be fenced: {problem}"

    async def retire(
        self, consumer: Id, why: str, generation: int | None = None, *, unplaceable: bool = True
    ) -> claims.ReleaseResult:
        """Retire a consumer for the reason `why`, release its allocations, and return the result.
        `unplaceable` records that no host was found for its build. With an empty `why` and no generation,
        only return the state of the consumer.
        """
        question = claims.ReleaseRequested(
            consumer=consumer, generation=generation, retire=cause_of(why), unplaceable=unplaceable
        )
        return (await self._placement.release(question)).result

    async def undo_placed(self, placed: BuildPlaced) -> BuildUnplaceable | None:
        """Raise `Retry` for a placed build that no conductor receives. After a time limit, retire the build,
        and return the message of its end, or None if it ended before. A build that replaces others is
        retried without limit.
        """
        self.wait_for_consumer(placed.request, placed.cell)
        if placed.parts.replace_others:  # they cannot be restored, so the build is not given up
            raise Retry(
                after=LONGEST_PAUSE, why=f"cell {placed.cell!r} must delete the instances it replaces"
            )
        host = placed.chosen.host
        why = f"cell {placed.cell!r}: no conductor takes builds there; the claim on {host} was released"
        match await self.retire(placed.build, why, placed.generation):
            case claims.Released():
                log.warning("build %s: %s", placed.build, why)
            case claims.Retired(why=cause, unplaceable=True):
                why = cause
            case claims.Retired():
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

    def wait_for_consumer(self, request: Id, cell: str) -> None:
        """Raise `Retry` while a cell without a conductor may still get one; after the time limit, return."""
        self._undelivered.begin(request)
        left = self._undeliverable_for - self._undelivered.retried_for(request)
        if left > 0:
            raise Retry(after=min(left, LONGEST_PAUSE), why=f"no conductor of cell {cell!r} receives it")
