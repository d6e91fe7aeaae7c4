"""Builders of schedulers that call a placement without a broker."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from berth.features import parts_of
from berth.settings import Settings
from bus.addressing import Query
from bus.candidates import CandidateSource
from bus.claims import ReleaseAnswered, ReleaseRequested
from bus.clock import Clock
from bus.errors import Poison, Retry
from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable
from bus.resources import AllocationsFound, Consumer, FindAllocations
from bus.sql.database import Database
from bus.vocabulary import Id
from features.moves.core.state import Handover
from features.moves.handovers import Handovers
from features.moves.lookups import MoveLookups
from features.moves.messages import FindMoves, MoveRequested, MovesFound
from features.moves.placing import MoveOutcome, MovePlacing, RequestedMove, StoreRefusals
from features.waiting.held_hosts import HeldHosts
from features.waiting.store import WaitingStore
from placement_worker import IndexedSource, Placement
from scheduler_worker import ChoicePolicy
from scheduler_worker.composition import plain_scheduler
from scheduler_worker.core.attributes import RequestOptions
from scheduler_worker.dependencies import UNDELIVERABLE_SECONDS, SchedulerOptions
from scheduler_worker.extension import Fallback, Narrowing, PartsOf, SchedulerNeeds, SchedulerPart
from scheduler_worker.orders import Orders
from scheduler_worker.placing import Scheduler
from scheduler_worker.queries import AskOf, CellQueries, PlacementQueries
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
        of_features = parts_of("scheduler", needs, Settings())
        return [*(replace(part, fallbacks=()) for part in of_features), *further]

    return parts


def waiting_store_of(scheduler: Scheduler) -> WaitingStore:
    """Return an empty store of waiting requests for a scheduler."""
    options = SchedulerOptions(policy=scheduler.policy)
    orders = Orders(scheduler.source, options.requests, options.policy)
    held = HeldHosts(scheduler.hosts, orders, options)
    return WaitingStore(scheduler, held, Database("sqlite+aiosqlite://"), lambda: None)


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


class HandoversInMemory(Handovers):
    """Stores the orders of moves between cells in memory instead of a database."""

    def __init__(self) -> None:
        self.orders: dict[Id, Handover] = {}

    async def known(self, moves: Collection[Id]) -> dict[Id, Handover]:
        return {move: self.orders[move] for move in moves if move in self.orders}

    async def keep(self, orders: Sequence[Handover]) -> dict[Id, Handover]:
        for order in orders:
            self.orders.setdefault(order.placed.move, order)
        return await self.known([order.placed.move for order in orders])


async def _forget(ended: object) -> None: ...


async def _no_moves(question: FindMoves) -> MovesFound:
    return MovesFound(moves=())


def moves_of(
    scheduler: Scheduler,
    find: Any,
    handovers: Handovers | None = None,
    keep: StoreRefusals = _forget,
    find_moves: Any = _no_moves,
) -> "MovesWithoutWaiting":
    """Return the moves of a scheduler whose cells answer `find` about their builds."""
    cells = CellQueries(builds=find, instances=_unused)
    lookups = MoveLookups(scheduler.source, scheduler.ending, scheduler.placement, cells, find_moves)
    handovers = handovers or HandoversInMemory()
    courses = MovePlacing(scheduler, lookups, handovers, keep)
    return MovesWithoutWaiting(courses)


class MovesWithoutWaiting:
    """The moves of a scheduler that does not store moves that have to wait."""

    def __init__(self, courses: MovePlacing) -> None:
        self.courses = courses
        self.undo_placed = courses.undoing.undo_placed

    async def place_many(self, requests: Sequence[MoveRequested]) -> list[MoveOutcome]:
        return await self.courses.place_new([RequestedMove(request) for request in requests])
