"""The index and what keeps it true: our own commits, the changes of others, and reading it all again."""

import logging
from collections.abc import Mapping, Sequence

from bus.database import Database
from bus.messages import PlacementChanged
from placement_worker.core.index import Index
from placement_worker.core.trees import Tree
from placement_worker.store import changes, trees
from placement_worker.store.names import Book

log = logging.getLogger(__name__)

ROOTS_A_PAGE = 2000


class Memory:
    def __init__(self, database: Database, book: Book) -> None:
        self.index = Index()
        self._database = database
        self._book = book
        self._missed: list[tuple[PlacementChanged, Mapping[str, Tree]]] | None = None  # while reloading
        self._stood = (0, 0)  # the last call of catch_up: what the index had seen, what the database had

    def learn(self, messages: Sequence[PlacementChanged], shaped: Mapping[str, Tree]) -> None:
        """Take in what was committed; `shaped` are the trees it made or changed, as they are now."""
        for message in messages:
            self.index.accept(message.number, message.changes, shaped)
            if self._missed is not None:
                self._missed.append((message, shaped))

    async def hear(self, message: PlacementChanged) -> None:
        """A commit of any process, this one's own included."""
        if self.index.knows(message.number):
            return
        # In their order, not as a set: it decides where the index puts them, and so what is offered first.
        roots = list(dict.fromkeys(change.root for change in message.changes if change.reshaped))
        shaped: dict[str, Tree] = {}
        if roots:
            async with self._database.read() as tx:
                shaped = await trees.load(tx, self._book, roots)
        self.learn([message], shaped)

    async def catch_up(self) -> None:
        """Read everything again when a change was committed one call ago and has not arrived."""
        async with self._database.read() as tx:
            last = await changes.last_number(tx)
        stood, self._stood = self._stood, (self.index.seen, last)
        if self.index.seen < stood[1] and self.index.seen == stood[0]:
            log.warning("change %d did not arrive: reading everything again", self.index.seen + 1)
            await self.reload()

    async def reload(self) -> None:
        """Fill the index from the database, once however many ask."""
        if self._missed is not None:
            return
        self._missed = []
        try:
            index = await self._read()
            for message, shaped in self._missed:
                index.accept(message.number, message.changes, shaped)
            self.index = index
        finally:
            self._missed = None

    async def _read(self) -> Index:
        # The number first: what is read after it holds at least all that happened up to it.
        async with self._database.read() as tx:
            index = Index(await changes.last_number(tx))
        after = 0
        while True:
            async with self._database.read() as tx:
                page = await trees.roots_after(tx, after, ROOTS_A_PAGE)
                if not page:
                    return index
                found = await trees.load(tx, self._book, [root for _, root in page])
            for tree in found.values():
                index.put(tree, index.seen)
            after = page[-1][0]
