"""Reads for the index: changes after a number, some trees, or all trees."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.replication import PlacementChanged
from bus.sql.database import Database
from placement_worker.core.trees import Tree
from placement_worker.store import aggregates, cells, changes, tree_reads
from placement_worker.store.numbered_names import Book

ROOTS_A_PAGE = 2000

Take = Callable[[Iterable[Tree]], Awaitable[None]]


class Forgotten(Exception):
    """The requested changes were deleted: the reader must read everything again."""

    def __init__(self, after: int, oldest: int) -> None:
        super().__init__(f"the changes from {after + 1} on are not kept any more; the oldest is {oldest}")
        self.oldest = oldest


class News(NamedTuple):
    messages: list[PlacementChanged]  # in their order, without a gap
    more: bool  # there may be


class MemoryReader(Protocol):
    """Where the truth is read: placement's own database, or placement over the bus.

    What it gives holds at least all that was committed when it was asked.
    """

    async def last(self) -> int:
        """Return the number of the last change."""

    async def changes(self, after: int, most: int) -> News:
        """Return at most this many changes after the number; raise Forgotten if the next one was deleted."""

    async def trees(self, roots: Collection[str]) -> Mapping[str, Tree]:
        """Return the trees; a missing one has no providers."""

    async def described(self) -> Iterable[Aggregate]:
        """Return the aggregates with names or metadata."""

    async def registered(self) -> Iterable[RegisteredCell]:
        """Return the registered cells."""

    async def each(self, take: Take) -> None:
        """Hand over all there are, page by page."""


class StoreReader:
    """Reads placement's own database."""

    def __init__(self, database: Database, book: Book) -> None:
        self._database = database
        self._book = book

    async def last(self) -> int:
        async with self._database.read_single() as tx:
            return await changes.last_number(tx)

    async def changes(self, after: int, most: int) -> News:
        async with self._database.read_single() as tx:
            found = await changes.after(tx, after, most)
        if found and found[0].number > after + 1:
            raise Forgotten(after, found[0].number)
        return News(found, len(found) == most)

    async def trees(self, roots: Collection[str]) -> Mapping[str, Tree]:
        async with self._database.read() as tx:
            return await tree_reads.load(tx, self._book, roots)

    async def described(self) -> Iterable[Aggregate]:
        async with self._database.read() as tx:
            return (await aggregates.described(tx)).values()

    async def registered(self) -> Iterable[RegisteredCell]:
        async with self._database.read() as tx:
            return await cells.registered(tx)

    async def each(self, take: Take) -> None:
        after = 0
        while True:
            async with self._database.read() as tx:
                page = await tree_reads.roots_after(tx, after, ROOTS_A_PAGE)
                found = await tree_reads.load(tx, self._book, [root for _, root in page])
            if not page:
                return
            await take(found.values())
            after = page[-1][0]
