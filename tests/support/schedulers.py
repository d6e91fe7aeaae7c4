"""Builders of schedulers that call a placement without a broker."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from berth.features import parts_of
from berth.settings import Settings
from bus.candidates import CandidateSource
from bus.claims import ReleaseAnswered, ReleaseRequested
from bus.clock import Clock
from bus.errors import Poison, Retry
from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable
from bus.resources import AllocationsFound, Consumer, FindAllocations
from bus.topics import Query
from placement_worker import IndexedSource, Placement
from scheduler_worker import ChoicePolicy
from scheduler_worker.composition import PartsOf, plain_scheduler
from scheduler_worker.core.request import RequestOptions
from scheduler_worker.dependencies import UNDELIVERABLE_SECONDS, SchedulerOptions
from scheduler_worker.extension import Fallback, ForScheduler, Narrowing, SchedulerNeeds, SchedulerPart
from scheduler_worker.placing.scheduler import Scheduler
from scheduler_worker.queries import AskOf, PlacementQueries
from tests.support.scheduler_builders import FakePlacement

T = TypeVar("T")


async def _unused(question: object) -> Any:
    raise AssertionError(f"unexpected query {question}")


def asks(answers: Mapping[Query[Any, Any], Any]) -> AskOf:
    """Return a function that returns, for each query, the function that answers it here."""

    def ask(query: Query[Any, Any], /) -> Any:
        return answers.get(query, _unused)

    return ask


def scheduler_of(
    placement: FakePlacement | Placement,
    *,
    source: CandidateSource | None = None,
    clock: Clock | None = None,
    policy: ChoicePolicy | None = None,
    requests: RequestOptions | None = None,
    undeliverable_for: float = UNDELIVERABLE_SECONDS,
    narrowings: Sequence[Narrowing] = (),
    fallbacks: Sequence[Fallback] = (),
    **queries: Any,
) -> Scheduler:
    """Return a scheduler of this placement, with other sources or queries where given."""
    if isinstance(placement, Placement):
        source, asked = source or IndexedSource(placement.memory), queries_of(placement)
        clock = clock or placement.clock
    else:
        source, asked = source or placement.source, placement.queries()
    policy, requests = policy or ChoicePolicy(), requests or RequestOptions()
    options = SchedulerOptions(policy=policy, requests=requests, undeliverable_for=undeliverable_for)
    placement_queries, clock = PlacementQueries(**{**vars(asked), **queries}), clock or Clock()
    parts = usual_parts(SchedulerPart(narrowings=tuple(narrowings), fallbacks=tuple(fallbacks)))
    return plain_scheduler(source, placement_queries, clock, options, parts)


def narrowing_of(scheduler: Scheduler, type_: type[T]) -> T:
    """Return the scheduler's narrowing of a type."""
    return next(each for each in scheduler.narrowings if isinstance(each, type_))


def usual_parts(*further: SchedulerPart) -> PartsOf:
    """Return the function that makes the parts of all features without their fallbacks, and further parts."""

    def parts(needs: SchedulerNeeds) -> list[SchedulerPart]:
        of_features = parts_of(ForScheduler, "scheduler", needs, Settings())
        return [*(replace(part, fallbacks=()) for part in of_features), *further]

    return parts


async def messages_of(
    scheduler: Scheduler, *requests: BuildRequested
) -> list[BuildPlaced | BuildUnplaceable]:
    """Return the messages for all requests, none of which is retried or dead-lettered."""
    messages: list[BuildPlaced | BuildUnplaceable] = []
    for verdict in await scheduler.place_many(requests):
        assert not isinstance(verdict, Retry | Poison), verdict
        messages += [each for each in verdict if isinstance(each, BuildPlaced | BuildUnplaceable)]
    return messages


async def placed_and_ended(
    scheduler: Scheduler, *requests: BuildRequested
) -> tuple[list[BuildPlaced], list[BuildUnplaceable]]:
    """Return the messages about placed instances, and about instances without a host."""
    messages = await messages_of(scheduler, *requests)
    return (
        [placed for placed in messages if isinstance(placed, BuildPlaced)],
        [end for end in messages if isinstance(end, BuildUnplaceable)],
    )


def allocations_of(placement: FakePlacement) -> Callable[[FindAllocations], Awaitable[AllocationsFound]]:
    """Return a function that answers queries for the allocations of consumers."""

    async def find(question: FindAllocations) -> AllocationsFound:
        held = {id_: placement.held[id_] for id_ in question.consumers if id_ in placement.held}
        found = [
            Consumer(
                id=id_, generation=1, project="p", user="u", type="INSTANCE", allocations=each.allocations
            )
            for id_, each in held.items()
        ]
        return AllocationsFound(consumers=tuple(found), generations={})

    return find


def queries_of(placement: Placement) -> PlacementQueries:
    async def release(order: ReleaseRequested) -> ReleaseAnswered:
        return (await placement.claims.release_many([order]))[0]

    return PlacementQueries(
        claim_many=placement.claims.claim_many,
        release=release,
        providers=placement.lookups.providers,
        allocations=placement.lookups.allocations,
        usages=_unused,
        edit=_unused,
        edit_name=_unused,
        ask=asks({row.query: row.handler for rows in placement.rows for row in rows.answers}),
    )
