"""The index and what keeps it true: our own commits, the changes of others, and reading it all again."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

from bus.candidates import Heard
from bus.messages import PlacementChanged
from bus.sql.database import Database
from placement_worker.core.index import Index
from placement_worker.core.trees import Tree
from placement_worker.store import aggregates, changes, tree_reads
from placement_worker.store.numbered_names import Book

log = logging.getLogger(__name__)

ROOTS_A_PAGE = 2000
CHANGES_A_PAGE = 200
LOOK_SECONDS = 1.0  # for changes of processes whose messages do not reach us


class Forgotten(Exception):
    """A reader asks for changes that are no longer kept: it must read everything again."""

    def __init__(self, after: int, oldest: int) -> None:
        super().__init__(f"the changes from {after + 1} on are not kept any more; the oldest is {oldest}")
        self.oldest = oldest


class Memory:
    """Holds the index. `fresh` brings it level with the database."""

    def __init__(self, database: Database, book: Book) -> None:
        self.index = Index()
        self._database = database
        self._book = book
        self._missed: list[tuple[PlacementChanged, Mapping[str, Tree]]] | None = None  # while reloading
        self._learned = asyncio.Event()  # set, and replaced, whenever something new is known
        self._watchers: list[Heard] = []

    def watch(self, heard: Heard) -> None:
        """Call this with what changed, roots and aggregates; after a reload all there are, or were."""
        self._watchers.append(heard)

    def learn(self, messages: Sequence[PlacementChanged], shaped: Mapping[str, Tree]) -> None:
        """Take in what was committed; `shaped` are the trees it made or changed, as they are now."""
        touched: dict[str, None] = {}
        told: dict[str, None] = {}
        for message in messages:
            own = shaped
            if len(messages) > 1:
                new = {change.root for change in message.changes if change.reshaped}
                own = {root: shaped[root] for root in new & shaped.keys()}
            roots = self.index.accept(message.number, message.changes, own, message.aggregates)
            touched.update(dict.fromkeys(roots))
            told.update(dict.fromkeys([one.id for one in message.aggregates]))
            if self._missed is not None:
                self._missed.append((message, own))
        self._learned.set()
        self._learned = asyncio.Event()
        if touched or told:
            for heard in self._watchers:
                heard(tuple(touched), tuple(told))

    async def hear(self, message: PlacementChanged) -> None:
        """A commit of any process, this one's own included."""
        if self.index.knows(message.number):
            return
        if message.changes or message.aggregates:
            await self._take_in([message])
        else:  # of aggregates, told by a placement that has no word for them
            await self.fresh()

    async def fresh(self) -> None:
        """Know at least what was committed when this was called: read the changes that have not arrived."""
        while True:
            seen = self.index.seen
            async with self._database.glance() as tx:
                missed = await changes.after(tx, seen, CHANGES_A_PAGE)
            if missed and missed[0].number > self.index.seen + 1:
                log.warning("change %d is not kept any more: reading everything again", seen + 1)
                await self.reload()
                return
            news = [message for message in missed if not self.index.knows(message.number)]
            if news:
                await self._take_in(news)
            if len(missed) < CHANGES_A_PAGE:
                return

    async def feed(self, after: int, until: asyncio.Event | None = None) -> AsyncIterator[PlacementChanged]:
        """Every change from this number on, in order, as it is committed; Forgotten when it is too old.

        It ends within LOOK_SECONDS of `until` being set.
        """
        async with self._database.read() as tx:
            last = await changes.last_number(tx)
            page = await changes.after(tx, after, CHANGES_A_PAGE)
        if after > last or (after < last and (not page or page[0].number > after + 1)):
            raise Forgotten(after, page[0].number if page else last + 1)
        while until is None or not until.is_set():
            for message in page:
                yield message
                after = message.number
            learned = self._learned
            async with self._database.glance() as tx:
                page = await changes.after(tx, after, CHANGES_A_PAGE)
            if not page:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await learned.wait()
            elif page[0].number > after + 1:  # the reader was slower than the log is long
                raise Forgotten(after, page[0].number)

    async def _take_in(self, messages: Sequence[PlacementChanged]) -> None:
        # In their order, not as a set: it decides where the index puts them, and so what is offered first.
        reshaped = (change.root for message in messages for change in message.changes if change.reshaped)
        roots = list(dict.fromkeys(reshaped))
        shaped: dict[str, Tree] = {}
        if roots:
            async with self._database.read() as tx:
                shaped = await tree_reads.load(tx, self._book, roots)
        self.learn(messages, shaped)

    async def reload(self) -> None:
        """Fill the index from the database, once however many ask."""
        if self._missed is not None:
            return
        self._missed = []
        try:
            index = await self._read()
            for message, shaped in self._missed:
                index.accept(message.number, message.changes, shaped, message.aggregates)
            before, self.index = self.index, index
        finally:
            self._missed = None
        everybody = tuple(dict.fromkeys((*before.trees, *index.trees)))
        aggregates = tuple(dict.fromkeys((*before.aggregate_facts, *index.aggregate_facts)))
        for heard in self._watchers:
            heard(everybody, aggregates)

    async def _read(self) -> Index:
        # The number first: what is read after it holds at least all that happened up to it.
        async with self._database.read() as tx:
            index = Index(await changes.last_number(tx))
            for one in (await aggregates.described(tx)).values():
                index.describe(one, index.seen)
        after = 0
        while True:
            async with self._database.read() as tx:
                page = await tree_reads.roots_after(tx, after, ROOTS_A_PAGE)
                if not page:
                    return index
                found = await tree_reads.load(tx, self._book, [root for _, root in page])
            for tree in found.values():
                index.put(tree, index.seen)
            after = page[-1][0]
