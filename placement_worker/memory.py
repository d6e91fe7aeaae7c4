"""Keeps placement's index up to date: applies commits of all placement processes, reads missed changes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from bus.aggregates import Aggregate
from bus.candidates import OnChange, OnWakes
from bus.cells import RegisteredCell
from bus.errors import Unavailable
from bus.replication import ChangesFound, PlacementChanged
from bus.sql.database import Database
from placement_worker.core.index import Index
from placement_worker.core.trees import Tree, unpacked
from placement_worker.store import aggregates, changes, hosts, stored_trees
from placement_worker.store.numbered_names import Book

ROOTS_A_PAGE = 2000

Take = Callable[[Iterable[Tree]], Awaitable[None]]


class Forgotten(Exception):
    """The error that requested changes are no longer in the change log: the reader must read the whole index
    again.
    """

    def __init__(self, after: int, oldest: int, why: str = "") -> None:
        super().__init__(
            why or f"the changes from {after + 1} on are not stored any more; the oldest is {oldest}"
        )
        self.oldest = oldest


class HistoryChanged(Exception):
    """The error that trees were read from a database with another history: a fail-over is in progress."""


def check_history(found: str, expected: str) -> None:
    """Raise HistoryChanged if the database's history id, which a fail-over changes, is not `expected`. If
    either id is empty, it is unknown: raise nothing.
    """
    if found and expected and found != expected:
        raise HistoryChanged(f"history {found} instead of {expected}")


class MemoryReader(Protocol):
    """The interface for reading placement's state into an index, from the database or over the bus."""

    async def changes(self, after: int, most: int) -> ChangesFound:
        """Return at most `most` commits of placement after this change number, and the newest number."""

    async def trees(self, roots: Collection[str], history: str) -> Mapping[str, Tree]:
        """Return the provider trees of the given roots; an unknown root has a tree without providers. Raise
        HistoryChanged if the database has another history.
        """

    async def facts(self) -> Iterable[Aggregate | RegisteredCell]:
        """Return all aggregates that have a name or metadata, and all registered cells."""

    async def each(self, take: Take, history: str) -> None:
        """Call the function `take` with all provider trees, one page of trees per call. Raise HistoryChanged
        if the database has another history.
        """


class StoreReader:
    """Reads placement's state from its database."""

    def __init__(self, database: Database, book: Book) -> None:
        self._database = database
        self._book = book

    async def changes(self, after: int, most: int) -> ChangesFound:
        async with self._database.read_single() as tx:
            return await changes.since(tx, after, most)

    async def trees(self, roots: Collection[str], history: str) -> Mapping[str, Tree]:
        async with self._database.read() as tx:
            check_history(tx.history, history)
            return await stored_trees.load(tx, self._book, roots)

    async def facts(self) -> Iterable[Aggregate | RegisteredCell]:
        async with self._database.read() as tx:
            return [*(await aggregates.described(tx)).values(), *await hosts.registered(tx)]

    async def each(self, take: Take, history: str) -> None:
        after = 0
        while True:
            async with self._database.read() as tx:
                check_history(tx.history, history)
                page = await stored_trees.roots_after(tx, after, ROOTS_A_PAGE)
                found = await stored_trees.load(tx, self._book, [root for _, root in page])
            if not page:
                return
            await take(found.values())
            after = page[-1][0]


log = logging.getLogger(__name__)

CHANGES_A_PAGE = 200
IN_A_ROW = 100  # trees added to the index before other tasks run
FAR_AHEAD = 1000  # above this distance, check that the database has a received change number
POLL_SECONDS = 1.0  # interval of checks for changes without a received message
FAILOVER_SECONDS = 0.2  # between attempts to read the index until all placement processes use the new primary


class Memory:
    """Placement's index in one process, kept up to date from the changes of all placement processes."""

    def __init__(self, reader: MemoryReader) -> None:
        self.index = Index()
        self.loads = 0  # number of complete loads
        self._reader = reader
        self._loading = asyncio.Lock()
        self._loaded = asyncio.Event()
        # Commits received during a reload, to be applied to the new index; None: no reload is in progress.
        self._missed: list[tuple[PlacementChanged, Mapping[str, Tree]]] | None = None
        self._learned = asyncio.Event()  # set when the index changes, and then replaced
        self._watchers: list[OnChange] = []
        self._wake_watchers: list[OnWakes] = []

    def watch(self, on_change: OnChange) -> None:
        """Register a callback for changes of the index; its arguments are the changed roots, and the changed
        aggregates and cells.
        """
        self._watchers.append(on_change)

    def watch_wakes(self, on_wakes: OnWakes) -> None:
        """Register a callback that is called with the keys of refused claims that may succeed now; "" means
        all keys.
        """
        self._wake_watchers.append(on_wakes)

    def learn(self, messages: Sequence[PlacementChanged], shaped: Mapping[str, Tree]) -> None:
        """Apply commits of this process to the index; `shaped` are trees that they created or reshaped."""
        touched: dict[str, None] = {}
        described: dict[str, None] = {}
        wakes: set[str] = set()
        foreign = [message for message in messages if not self.index.is_of(message.history)]
        if self._missed is not None:
            self._missed += [(message, shaped) for message in foreign]  # commits after a fail-over
        for message in messages:
            if message in foreign:
                continue
            own_shapes = shaped
            if len(messages) > 1:
                new = dict.fromkeys(change.root for change in message.changes if change.reshaped)
                own_shapes = {root: shaped[root] for root in new if root in shaped}
            roots = self.index.accept(
                message.number, message.changes, own_shapes, message.aggregates, message.cells
            )
            touched.update(dict.fromkeys(roots))
            described.update(dict.fromkeys([aggregate.id for aggregate in message.aggregates]))
            described.update(dict.fromkeys([cell.name for cell in message.cells]))
            wakes.update(message.wakes)
            if self._missed is not None:
                self._missed.append((message, own_shapes))
        self._learned.set()
        self._learned = asyncio.Event()
        if self.loads and (touched or described):
            for on_change in self._watchers:
                on_change(tuple(touched), tuple(described))
        for on_wakes in self._wake_watchers if wakes else ():
            on_wakes(wakes)

    async def handle_many(self, messages: Sequence[PlacementChanged]) -> Sequence[None]:
        """Apply `placement.changed` messages of any process to the index; read the trees that the messages
        lack, all in one query."""
        known_history = [message for message in messages if self.index.is_of(message.history)]
        if len(known_history) < len(messages):  # some are from another primary, after a fail-over
            await self.fresh()
        unknown = [message for message in known_history if not self.index.knows(message.number)]
        if self.loads:
            unknown = await self._committed(self.index, unknown)
        effective = [change for change in unknown if has_effect(change)]
        if effective:
            await self._take_in(effective)
        if len(effective) < len(unknown):  # read changes that an older placement has published incompletely
            await self.fresh()
        return [None] * len(messages)

    async def _committed(self, index: Index, messages: list[PlacementChanged]) -> list[PlacementChanged]:
        """Return the given messages, except messages with a change number far above the database's last one:
        no such commit exists.
        """
        if all(message.number <= index.seen + FAR_AHEAD for message in messages):
            return messages
        last = (await self._reader.changes(0, 1)).last
        true = [change for change in messages if change.number <= max(last, index.seen + FAR_AHEAD)]
        for number in {message.number for message in messages} - {message.number for message in true}:
            log.error("change %d does not exist, placement's last is %d: it is ignored", number, last)
        return true

    async def fresh(self) -> None:
        """Read missed changes until the index includes every commit made before this call. After a fail-over
        the whole index is read again, because it may contain commits that the database has lost.
        """
        more = True
        while more:
            seen = self.index.seen
            try:
                missed, more, _ = await self._changes(seen, self.index.history)
            except Forgotten as forgotten:
                if self.index.seen == seen:  # no change was applied in the meantime
                    log.warning("%s: reading everything again", forgotten)
                    await self.reload()
                continue
            unknown = [message for message in missed if not self.index.knows(message.number)]
            if unknown:
                await self._take_in(unknown)

    async def _changes(self, after: int, history: str) -> tuple[Sequence[PlacementChanged], bool, str]:
        """Return the changes after a number, whether more follow, and the database's history. Raise Forgotten
        if the changes are no longer stored, or the database has another history than `history`.
        """
        found = await self._reader.changes(after, CHANGES_A_PAGE)
        if found.history and history and found.history != history:
            why = f"placement's database has failed over: its history is {found.history}, and was {history}"
            raise Forgotten(after, found.last + 1, why)
        if found.last < after:
            why = (
                f"placement's last change is {found.last}, and {after} was expected: its database is a "
                "different one"
            )
            raise Forgotten(after, found.last + 1, why)
        first = found.changes[0].number if found.changes else found.last + 1
        if first > after + 1:
            raise Forgotten(after, found.oldest or first)
        more = bool(found.changes) and found.changes[-1].number < found.last
        return found.changes, more, found.history

    async def feed(self, after: int, until: asyncio.Event | None = None) -> AsyncIterator[PlacementChanged]:
        """Yield every commit of placement after this change number, soon after it is committed. The generator
        ends within POLL_SECONDS after the event `until` is set. Raise Forgotten if a change is no longer
        stored, or a fail-over may have lost it.
        """
        page, _, history = await self._changes(after, "")
        while until is None or not until.is_set():
            for message in page:
                yield message
                after = message.number
            learned = self._learned
            page, _, _ = await self._changes(after, history)
            if not page:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await learned.wait()

    async def _take_in(self, messages: Sequence[PlacementChanged]) -> None:
        # root → tree (None: not in the message), in commit order, which decides the rows in the index
        shaped: dict[str, Tree | None] = {}
        for message in sorted(messages, key=lambda each_message: each_message.number):
            trees = _changed_trees(message)
            shaped |= {change.root: trees.get(change.root) for change in message.changes if change.reshaped}
        if unknown := [root for root, tree in shaped.items() if tree is None]:
            try:
                shaped |= await self._reader.trees(unknown, self.index.history)
            except HistoryChanged:
                await self.reload()
                return
        self.learn(messages, {root: tree for root, tree in shaped.items() if tree is not None})

    async def loaded(self) -> None:
        """Wait until the index has been loaded for the first time."""
        await self._loaded.wait()

    async def reload(self) -> None:
        """Load the whole index again; concurrent callers share one reload."""
        loads = self.loads
        async with self._loading:
            if self.loads != loads:
                return
            self._missed = []
            try:
                index = await self._read()
                while index is None:  # a fail-over is in progress
                    await asyncio.sleep(FAILOVER_SECONDS)
                    index = await self._read()
                reported = [message for message, _ in self._missed]
                reported = [message for message in reported if index.is_of(message.history)]
                true = {message.number for message in await self._committed(index, reported)}
                false = {message.number for message in reported} - true
                for message, shaped in self._missed:  # including commits received during the last `await`
                    if message.number in false or not index.is_of(message.history):
                        continue
                    index.accept(message.number, message.changes, shaped, message.aggregates, message.cells)
                before, self.index = self.index, index
                self.loads += 1
                self._loaded.set()
            finally:
                self._missed = None
        everybody = tuple(dict.fromkeys((*before.trees, *index.trees)))
        facts = before.aggregate_facts, index.aggregate_facts, before.cell_facts, index.cell_facts
        described = tuple(dict.fromkeys(name for some in facts for name in some))
        for on_change in self._watchers:
            on_change(everybody, described)
        for on_wakes in self._wake_watchers:
            on_wakes({""})

    async def _read(self) -> Index | None:
        """Return a new index, or None if the database failed over meanwhile."""
        # Read the change number before the trees, which then include all changes up to this number.
        newest = await self._reader.changes(0, 1)
        index = Index(newest.last, newest.history)
        for fact in await self._reader.facts():
            index.describe(fact, index.seen)

        async def take(trees: Iterable[Tree]) -> None:
            for position, tree in enumerate(trees, 1):
                index.put(tree, index.seen)
                if position % IN_A_ROW == 0:
                    await asyncio.sleep(0)

        try:
            await self._reader.each(take, index.history)
        except HistoryChanged as changed:
            log.info("the index is read again: %s", changed)
            return None
        return index


def has_effect(change: PlacementChanged) -> bool:
    """Return whether a change names a provider, aggregate, cell or key. If a newer version of berth made
    the change and an older version published it, the names may be missing.
    """
    return bool(change.changes or change.aggregates or change.cells or change.wakes)


def _changed_trees(message: PlacementChanged) -> Mapping[str, Tree]:
    if message.trees is None:
        return {}
    try:
        return {tree.root: tree for tree, left_out in unpacked(message.trees) if not left_out}
    except (LookupError, ValueError):
        log.error("the trees in change %d are invalid: they are read from placement", message.number)
        return {}


# Placement's index for other workers of the same process.


class SharedMemory:
    """Gives the other workers of this process access to placement's index. A worker may start before
    placement does.
    """

    def __init__(self) -> None:
        self._memory: Memory | None = None
        self._given = asyncio.Event()
        self._registrations: list[Callable[[Memory], None]] = []

    def give(self, memory: Memory) -> None:
        self._memory = memory
        for register in self._registrations:
            register(memory)
        self._given.set()

    @property
    def index(self) -> Index:
        if self._memory is None or not self._memory.loads:
            raise Unavailable("placement has not read what there is yet")
        return self._memory.index

    def watch(self, on_change: OnChange) -> None:
        self._register(lambda memory: memory.watch(on_change))

    def watch_wakes(self, on_wakes: OnWakes) -> None:
        self._register(lambda memory: memory.watch_wakes(on_wakes))

    def _register(self, register: Callable[[Memory], None]) -> None:
        self._registrations.append(register)
        if self._memory is not None:
            register(self._memory)

    async def loaded(self) -> None:
        await self._given.wait()
        assert self._memory is not None
        await self._memory.loaded()

    async def fresh(self) -> None:
        """Wait until placement's index in this process includes the earlier commits of all processes."""
        await self.loaded()
        assert self._memory is not None
        await self._memory.fresh()
