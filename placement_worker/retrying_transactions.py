"""Splits work into transactions, and retries them after serialization failures."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import IntegrityError

from bus.clock import Clock
from bus.errors import Unavailable
from bus.sql.database import Database
from bus.sql.failures import Conflict, retrying
from bus.sql.transaction import Transaction
from placement_worker.store.numbered_names import Book

P = ParamSpec("P")
T = TypeVar("T")


def again(clock: Clock, work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Return the function with retries after serialization failures; after the last one it raises
    Unavailable.
    """

    def later(*_: P.args, **__: P.kwargs) -> T:
        raise Unavailable("placement lost the same race too often")

    return retrying(clock, otherwise=later)(work)


@asynccontextmanager
async def changing(database: Database, book: Book) -> AsyncIterator[Transaction]:
    """Yield a transaction; raise Conflict, so that it is retried, if another process has changed the names
    and numbers it uses.
    """
    reading = book.reading
    try:
        async with database.write() as tx:
            yield tx
            if book.reading != reading:
                raise Conflict("names were dropped or renamed meanwhile")
    except IntegrityError as error:
        await book.read_again(database)
        raise Conflict(str(error.orig)) from error
