"""Transactions of placement: retried after serialization failures, and shared by concurrent HTTP requests."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, TypeVar, cast

from sqlalchemy.exc import IntegrityError

from bus.clock import Clock
from bus.errors import Unavailable
from bus.sql.database import Database
from bus.sql.failures import Conflict, retrying
from bus.sql.transaction import Transaction
from bus.vocabulary import Contended
from placement_worker.change_log import ChangeLog
from placement_worker.store.changes import ProviderNumbers
from placement_worker.store.numbered_names import Book

A = TypeVar("A")
R = TypeVar("R")

MOST = 200
AT_ONCE = 2


@dataclass(frozen=True)
class Parts:
    """Database, clock, names and change log, which all groups of placement's operations share."""

    database: Database
    clock: Clock
    book: Book
    log: ChangeLog
    numbers: ProviderNumbers


class Batched(Generic[A, R]):
    """Joins concurrent calls: answers `await together(order)` from `work(orders)`, which returns one answer
    for each order.

    While `AT_ONCE` batches are in progress, new orders wait for the next one. Works while `run` runs.
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
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._serve())

    async def _serve(self) -> None:
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
        except Exception as error:  # the callers' to handle, not ours
            for _, future in wanted:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(wanted, answers, strict=True):
            if not future.done():
                future.set_result(answer)


class PlacementOperations:
    """The base class of a group of operations on placement's database."""

    def __init__(self, parts: Parts) -> None:
        self.database = parts.database
        self.clock = parts.clock
        self.book = parts.book
        self._log = parts.log
        self._numbers = parts.numbers


W = TypeVar("W", bound=Callable[..., Awaitable[Any]])


def _unavailable(*_: Any, **__: Any) -> Any:
    raise Unavailable("placement lost the same race too often")


def again(otherwise: Callable[..., Any] = _unavailable) -> Callable[[W], W]:
    """Return a method that is repeated after lost races; after the last try `otherwise` answers."""

    def decorate(work: W) -> W:
        @wraps(work)
        async def repeated(self: Any, *args: Any, **given: Any) -> Any:
            return await retrying(self.clock, otherwise=otherwise)(work)(self, *args, **given)

        return cast(W, repeated)

    return decorate


def contended(*_: Any) -> Contended:
    """Return the answer to an edit that lost a race with other writers too often."""
    return Contended()


def contended_each(_: object, orders: Sequence[Any], *__: Any) -> list[Contended]:
    """Return the answers to orders that lost a race with other writers too often."""
    return [Contended()] * len(orders)


@asynccontextmanager
async def changing(database: Database, book: Book) -> AsyncIterator[Transaction]:
    """Yield a transaction; raise Conflict, to be retried, if names that it uses have changed meanwhile."""
    reading = book.reading
    try:
        async with database.write() as tx:
            yield tx
            if book.reading != reading:
                raise Conflict("names were dropped or renamed meanwhile")
    except IntegrityError as error:
        await book.read_again(database)
        raise Conflict(str(error.orig)) from error
