"""Executes claims and releases in database transactions."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, TypeVar, cast

from msgspec import structs
from sqlalchemy.exc import IntegrityError

from bus.claims import (
    CLEANUP,
    HOLDER_TYPES,
    ClaimAnswered,
    Claimed,
    ClaimRequested,
    ClaimResult,
    ReleaseAnswered,
    Released,
    ReleaseRequested,
    ReleaseResult,
)
from bus.clock import Clock
from bus.errors import Unavailable
from bus.replication import ProviderChange
from bus.sql.database import Database
from bus.sql.failures import Conflict, retrying
from bus.sql.statement import BoundStatement, Transaction
from bus.vocabulary import Contended, portions, portions_by_size
from placement_worker.change_log import ChangeLog
from placement_worker.claim_rule import ClaimRule, ClaimScope
from placement_worker.core import capacity
from placement_worker.core.capacity import ClaimWorld, changed_consumers
from placement_worker.core.reports import released
from placement_worker.core.trees import Tree
from placement_worker.store import claimed_providers, claims, stored_trees
from placement_worker.store.changes import CommitRecord, ProviderNumbers
from placement_worker.store.numbered_names import Book

# The base of placement's operations: retries a transaction after a write conflict, and combines concurrent
# requests into one transaction.


A = TypeVar("A")
R = TypeVar("R")

MOST = 200
AT_ONCE = 2


class Batched(Generic[A, R]):
    """Combines concurrent calls into batches; `work` executes a batch and returns the answer to each call.

    At most `AT_ONCE` batches run at a time; further calls wait. The task `run` must be running, because it
    executes the batches.
    """

    def __init__(self, work: Callable[[Sequence[A]], Awaitable[Sequence[R]]]) -> None:
        self._work = work
        self._waiting: deque[tuple[A, asyncio.Future[R]]] = deque()
        self._come = asyncio.Condition()

    async def __call__(self, order: A) -> R:
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((order, future))
        async with self._come:
            self._come.notify()
        return await future

    async def run(self) -> None:
        """Execute submitted requests in batches, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._serve())

    async def _serve(self) -> None:
        """Answer waiting orders in batches until cancelled."""
        while True:
            async with self._come:
                await self._come.wait_for(lambda: self._waiting)
            taken = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
            wanted = [(order, future) for order, future in taken if not future.done()]
            if wanted:
                await self._answer(wanted)

    async def _answer(self, wanted: Sequence[tuple[A, asyncio.Future[R]]]) -> None:
        try:
            answers = await self._work([order for order, _ in wanted])
        except asyncio.CancelledError:
            for _, future in wanted:
                future.cancel()
            raise
        except Exception as error:  # raised in the callers that wait for the batch
            for _, future in wanted:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(wanted, answers, strict=True):
            if not future.done():
                future.set_result(answer)


@dataclass(eq=False)
class PlacementOperations:
    """The base class of placement's operations, with the database and change log that all of them use."""

    database: Database
    clock: Clock
    book: Book
    log: ChangeLog
    numbers: ProviderNumbers


W = TypeVar("W", bound=Callable[..., Awaitable[Any]])


def _unavailable(*_: Any, **__: Any) -> Any:
    raise Unavailable("placement lost the same race too often")


def again(otherwise: Callable[..., Any] = _unavailable) -> Callable[[W], W]:
    """Return a decorator that retries a method after write conflicts. After the last attempt, the method
    returns the result of `otherwise`.
    """

    def decorate(work: W) -> W:
        @wraps(work)
        async def repeated(self: Any, *args: Any, **given: Any) -> Any:
            return await retrying(self.clock, otherwise=otherwise)(work)(self, *args, **given)

        return cast(W, repeated)

    return decorate


def contended(*_: Any) -> Contended:
    """Return the refusal of an edit after every attempt of its transaction conflicted with another writer."""
    return Contended()


def contended_each(_: object, orders: Sequence[Any], *__: Any) -> list[Contended]:
    """Return a refusal for each request of a batch, after every attempt conflicted with another writer."""
    return [Contended()] * len(orders)


@asynccontextmanager
async def changing(database: Database, book: Book) -> AsyncIterator[Transaction]:
    """Yield a write transaction; raise Conflict, for a retry, if a name of a resource class or trait changed
    meanwhile."""
    reading = book.reading
    try:
        async with database.write() as tx:
            yield tx
            if book.reading != reading:
                raise Conflict("names were dropped or renamed meanwhile")
    except IntegrityError as error:
        await book.read_again(database)
        raise Conflict(str(error.orig)) from error


CLAIMS_A_TRANSACTION = 500


@dataclass(eq=False)
class ClaimOperations(PlacementOperations):
    """Claims and releases allocations in database transactions, without reading the index, which may be
    outdated.

    A transaction that conflicts with another writer is retried.
    """

    rules: Sequence[ClaimRule]  # in the order in which they judge

    def __post_init__(self) -> None:
        self._columns = {column: why for rule in self.rules for column, why in rule.columns.items()}
        # consumer types that are no instances
        self.holder_types = (*HOLDER_TYPES, *(type_ for rule in self.rules for type_ in rule.holder_types))

    async def claim_many(
        self, orders: Sequence[ClaimRequested], *, cell: str = ""
    ) -> Sequence[ClaimAnswered]:
        """Execute several claim requests; the claims of one request succeed together or not at all. `cell` is
        the cell that sent the requests, or "" if no cell did.
        """
        results: list[tuple[ClaimResult, ...]] = []
        for part in portions_by_size(orders, lambda order: len(order.claims), CLAIMS_A_TRANSACTION):
            # The first choice of a claim nearly always fits: lock only its providers. If it does not fit,
            # decide the claim again, with the providers of all choices locked.
            first = await self._claim(part, cell, all_choices=False)
            waiting = [order for order, result in zip(part, first, strict=True) if result is None]
            second = iter(await self._claim(waiting, cell, all_choices=True) if waiting else ())
            for order, result in zip(part, first, strict=True):
                judged = result if result is not None else next(second)
                results.append(judged if judged is not None else _contended(order))
        return [ClaimAnswered(results=result) for result in results]

    @again(lambda _, orders, *__, **___: [_contended(order) for order in orders])
    async def _claim(
        self, orders: Sequence[ClaimRequested], cell: str, *, all_choices: bool
    ) -> list[tuple[ClaimResult, ...] | None]:
        every = [claim for order in orders for claim in order.claims]
        now = self.clock.now()
        await self.book.know_owners(self.database, every, now)
        providers = capacity.providers_of(orders, all_choices=all_choices)
        if all_choices:
            async with self.database.read() as tx:
                providers.update(*(await claimed_providers.siblings(tx, providers)).values())
        scope = claims.claim_scope(every, providers, cell)
        async with self._world(scope, now) as (tx, world):
            results = [capacity.claim(order, world) for order in orders]
            number = await self._save(tx, world, now)
        return [result and _numbered(result, number) for result in results]

    async def release_many(
        self, orders: Sequence[ReleaseRequested], *, cell: str = "", last: Sequence[BoundStatement] = ()
    ) -> Sequence[ReleaseAnswered]:
        """Execute several releases, and the statements `last` in the same transactions."""
        results: list[ReleaseResult] = []
        for some in portions(orders, CLAIMS_A_TRANSACTION):
            first, unread = await self._release(some, cell, (), last)
            waiting = [order for order, result in zip(some, first, strict=True) if result is None]
            # The first attempt has found out which further consumers must be read.
            second = iter((await self._release(waiting, cell, unread, last))[0] if waiting else ())
            for result in first:
                judged = result if result is not None else next(second)
                results.append(judged if judged is not None else Contended())
        return [ReleaseAnswered(result=result) for result in results]

    @again(lambda _, orders, *__: ([Contended()] * len(orders), set()))
    async def _release(
        self,
        orders: Sequence[ReleaseRequested],
        cell: str,
        unread: Collection[str],
        last: Sequence[BoundStatement],
    ) -> tuple[list[ReleaseResult | None], Collection[str]]:
        """Release allocations in one transaction. Return a result for each request, or None if further
        consumers must be read first. Also return these: the next call gets them as `unread`.
        """
        now = self.clock.now()
        if any(order.keep for order in orders):
            await self.book.types.ensure(self.database, (CLEANUP,), now)
        scope = claims.release_scope(orders, cell, unread)
        async with self._world(scope, now) as (tx, world):
            results = [capacity.release(order, world) for order in orders]
            number = await self._save(tx, world, now)
            for statement in last:
                await statement(tx)
        numbered = [
            Released(number=number)
            if isinstance(result, Released) and order.consumer in world.changed_holders
            else result
            for order, result in zip(orders, results, strict=True)
        ]
        return numbered, world.unread

    @asynccontextmanager
    async def _world(self, scope: ClaimScope, now: float) -> AsyncIterator[tuple[Transaction, ClaimWorld]]:
        """Yield a transaction with the locked data that decides claims and releases."""
        for rule in self.rules:
            await rule.prepare(scope, now)
        active = [rule for rule in self.rules if rule.needs(scope)]
        async with changing(self.database, self.book) as tx:
            rules = active, self._columns, self.holder_types
            yield tx, await claims.open_world(tx, self.book, scope, now, *rules)

    async def _save(self, tx: Transaction, world: ClaimWorld, now: float) -> int:
        wakes: list[str] = []
        for rule in self.rules:
            if type(rule) in world.state:
                for statement in rule.write(world):
                    await statement(tx)
                wakes += await rule.wakes(tx, world)
        altered, writes = await claims.save_world(tx, self.book, world, now)
        shaped: dict[str, Tree] = {}
        if former := world.former_classes:
            altered, shaped = await self._leave_former(tx, former, altered, writes, now)
            writes = []
        # A commit that changes no provider is not logged.
        record = CommitRecord(
            changes=altered, shaped=shaped, consumers=changed_consumers(world), wakes=wakes if altered else ()
        )
        return await self.log.write(tx, record, writes, urgent=world.frees)

    async def _leave_former(
        self,
        tx: Transaction,
        former: Mapping[str, Collection[str]],
        altered: Sequence[ProviderChange],
        writes: Sequence[BoundStatement],
        now: float,
    ) -> tuple[list[ProviderChange], dict[str, Tree]]:
        """Execute `writes`, then delete the `former` classes of nodes (root → classes), whose last units were
        released. Return all changes to log (`altered` are those of the claims) and the changed trees.
        """
        for write in writes:
            await write(tx)
        trees = await stored_trees.read(tx, self.book, former)
        judged = [(tree, released(tree, former[root])) for root, tree in trees.items()]
        pairs = [(was, then) for was, then in judged if then.providers != was.providers]
        for some in stored_trees.writes_between(self.book, pairs, now):
            for write in some:
                await write(tx)
        shaped = {then.root: then for _, then in pairs}
        others = [change for change in altered if change.provider not in shaped]
        return [*others, *stored_trees.changes_between(pairs)], shaped

    async def prune(self, before: float) -> None:
        """Delete the records of consumers retired before this time; their ids may be used again."""
        async with self.database.write() as tx:
            await claims.PRUNE_RETIRED(tx, before=before)


def _numbered(results: tuple[ClaimResult, ...], number: int) -> tuple[ClaimResult, ...]:
    """Return results in which each claim has the number of the commit."""
    return tuple(
        structs.replace(result, number=number) if isinstance(result, Claimed) else result
        for result in results
    )


def _contended(order: ClaimRequested) -> tuple[ClaimResult, ...]:
    return tuple(Contended() for _ in order.claims)
