"""The base of placement's operations: retries a transaction after a write conflict, and combines concurrent
requests into one transaction.
"""

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
from bus.sql.statement import Transaction
from bus.vocabulary import Contended
from placement_worker.change_log import ChangeLog
from placement_worker.store.changes import ProviderNumbers
from placement_worker.store.numbered_names import Book

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
