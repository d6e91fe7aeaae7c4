"""Keeps placement's index up to date: applies commits of all placement processes, reads missed changes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from bus.aggregates import Aggregate
from bus.candidates import Bools, OnChange, OnWakes
from bus.cells import RegisteredCell
from bus.errors import Unavailable
from bus.replication import ChangesFound, PlacementChanged
from bus.reports import EXCLUDES_SIBLINGS
from bus.sql.database import Database
from placement_worker.core.index import Index, Snapshot, Tops
from placement_worker.core.index_rows import Row, Sums
from placement_worker.core.row_table import IndexPacking
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
        """Read all trees page by page; raise if the database was replaced by another one meanwhile."""
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
FAILOVER_SECONDS = 0.2  # between attempts to read the index until all placement processes use the new primary


class Memory:
    """Placement's index in one process, kept up to date from the changes of all placement processes."""

    reader: MemoryReader

    def __init__(self, reader: MemoryReader | None = None) -> None:
        """`reader` reads the trees and changes. None: placement is not there yet, and sets the reader when it
        starts; a scheduler in the same process may wait for the index before.
        """
        if reader is not None:
            self.reader = reader
        self._index = Index()
        self.loads = 0  # number of complete loads
        self._loading = asyncio.Lock()
        self._loaded = asyncio.Event()
        # Commits received during a reload, to be applied to the new index; None: no reload is in progress.
        self._missed: list[tuple[PlacementChanged, Mapping[str, Tree]]] | None = None
        self._watchers: list[OnChange] = []
        self._wake_watchers: list[OnWakes] = []

    @property
    def index(self) -> Index:
        """Return the index; raise Unavailable until it is loaded, because it would seem to have no hosts."""
        if not self.loads:
            raise Unavailable("what there is has not been read by placement yet")
        return self._index

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
        foreign = [message for message in messages if not self._index.is_of(message.history)]
        if self._missed is not None:
            self._missed += [(message, shaped) for message in foreign]  # commits after a fail-over
        for message in messages:
            if message in foreign:
                continue
            own_shapes = shaped
            if len(messages) > 1:
                new = dict.fromkeys(change.root for change in message.changes if change.reshaped)
                own_shapes = {root: shaped[root] for root in new if root in shaped}
            roots = self._index.accept(
                message.number, message.changes, own_shapes, message.aggregates, message.cells
            )
            touched.update(dict.fromkeys(roots))
            described.update(dict.fromkeys([aggregate.id for aggregate in message.aggregates]))
            described.update(dict.fromkeys([cell.name for cell in message.cells]))
            wakes.update(message.wakes)
            if self._missed is not None:
                self._missed.append((message, own_shapes))
        if self.loads and (touched or described):
            for on_change in self._watchers:
                on_change(tuple(touched), tuple(described))
        for on_wakes in self._wake_watchers if wakes else ():
            on_wakes(wakes)

    async def handle_many(self, messages: Sequence[PlacementChanged]) -> Sequence[None]:
        """Apply `placement.changed` messages of any process to the index; read the trees that the messages
        lack, all in one query."""
        known_history = [message for message in messages if self._index.is_of(message.history)]
        if len(known_history) < len(messages):  # some are from another primary, after a fail-over
            await self.fresh()
        unknown = [message for message in known_history if not self._index.knows(message.number)]
        if self.loads:
            unknown = await self._committed(self._index, unknown)
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
        last = (await self.reader.changes(0, 1)).last
        true = [change for change in messages if change.number <= max(last, index.seen + FAR_AHEAD)]
        for number in {message.number for message in messages} - {message.number for message in true}:
            log.error("change %d does not exist, placement's last is %d: it is ignored", number, last)
        return true

    async def fresh(self) -> None:
        """Read missed changes until the index includes every commit made before this call. After a fail-over
        the whole index is read again, because it may contain commits that the database has lost.
        """
        await self.loaded()
        more = True
        while more:
            seen = self._index.seen
            try:
                missed, more, _ = await self.changes_after(seen, self._index.history)
            except Forgotten as forgotten:
                if self._index.seen == seen:  # no change was applied in the meantime
                    log.warning("%s: reading everything again", forgotten)
                    await self.reload()
                continue
            unknown = [message for message in missed if not self._index.knows(message.number)]
            if unknown:
                await self._take_in(unknown)

    async def changes_after(self, after: int, history: str) -> tuple[Sequence[PlacementChanged], bool, str]:
        """Return the changes after a number, whether more follow, and the database's history. Raise Forgotten
        if the changes are no longer stored, or the database has another history than `history`.
        """
        found = await self.reader.changes(after, CHANGES_A_PAGE)
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

    async def _take_in(self, messages: Sequence[PlacementChanged]) -> None:
        """Apply received commits to the index, and read those trees that the messages do not contain."""
        # root → tree (None: not in the message), in commit order, which decides the rows in the index
        shaped: dict[str, Tree | None] = {}
        for message in sorted(messages, key=lambda each_message: each_message.number):
            trees = _changed_trees(message)
            shaped |= {change.root: trees.get(change.root) for change in message.changes if change.reshaped}
        if unknown := [root for root, tree in shaped.items() if tree is None]:
            try:
                shaped |= await self.reader.trees(unknown, self._index.history)
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
                before, self._index = self._index, index
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
        newest = await self.reader.changes(0, 1)
        index = Index(newest.last, newest.history)
        for fact in await self.reader.facts():
            index.describe(fact, index.seen)

        async def take(trees: Iterable[Tree]) -> None:
            for position, tree in enumerate(trees, 1):
                index.put(tree, index.seen)
                if position % IN_A_ROW == 0:
                    await asyncio.sleep(0)

        try:
            await self.reader.each(take, index.history)
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


class PackedSnapshot(Snapshot):
    """The index with a scheduler's tentative choices counted as used. Searches in it must not pause."""

    def __init__(self, index: Index, packing: IndexPacking) -> None:
        super().__init__(index)
        self.packing = packing
        high = index.high  # number of rows in use; the arrays of resource classes are longer
        self._left: dict[str, Sums] = {
            name: index.classes[name].left[:high] - taken[:high]
            for name, taken in packing.arrays(index).items()
            if name in index.classes
        }
        # class → row → largest amount of one claim, for rows of which choices release amounts
        self._raised: dict[str, dict[int, int]] = {}
        for uuid, name in packing.negative:
            row = index.rows.get(uuid)
            if row is not None and name in row.inventories:
                self._raised.setdefault(name, {})[row.position] = row.inventories[name].max_unit
        excluding = index.traits.get(EXCLUDES_SIBLINGS)
        self.excludes = bool(excluding)  # whether a choice can take siblings of its provider, too
        self._excluded = self._excluded_by_choices() if excluding else frozenset()
        self._changes = packing.changes

    def _excluded_by_choices(self) -> frozenset[str]:
        """Exclude the siblings of chosen providers that exclude them; return their ids."""
        index, excluded = self.index, set[str]()
        for uuid in self.packing.taken:
            row = index.rows.get(uuid)
            if row is None or EXCLUDES_SIBLINGS not in row.traits:
                continue
            for sibling in index.excluded_by(row):
                excluded.add(sibling.uuid)
                for name in sibling.capacity:
                    if name not in self._left:
                        self._left[name] = index.classes[name].left[: index.high].copy()
                    self._left[name][sibling.position] = min(self._left[name][sibling.position], 0)
        return frozenset(excluded)

    @property
    def current(self) -> bool:
        """Return whether the tentative choices are unchanged since this snapshot was made."""
        return self.packing.changes == self._changes

    def top(self, name: str) -> Tops:
        left = self._left.get(name)
        return self.index.classes[name].top if left is None else np.minimum(self._most(name, len(left)), left)

    def gives(self, name: str, asked: int) -> Bools:
        left = self._left.get(name)
        if left is None:
            return super().gives(name, asked)
        met: Bools = left >= asked
        if self.index.classes[name].capped:
            met &= self._most(name, len(left)) >= asked
        return met

    def _most(self, name: str, rows: int) -> Tops:
        """Return, for each of the first `rows` rows of the index, the largest amount that one claim can get.
        What choices take is not subtracted; a provider of which they release amounts has its `max_unit`.
        """
        top = self.index.classes[name].top[:rows]
        if raised := self._raised.get(name):
            top = top.copy()
            for position, amount in raised.items():
                top[position] = amount
        return top

    def left(self, name: str) -> Sums:
        left = self._left.get(name)
        return self.index.classes[name].left if left is None else left

    def alter(self, row: Row) -> Row:
        if row.uuid in self._excluded:
            row = replace(row, summary=None, known_free=None, excluded=True)
        taken: Mapping[str, int] | None = self.packing.taken.get(row.uuid)
        if not taken:
            return row
        used = row.used  # may contain removed resource classes that are still in use
        amounts = {name: used.get(name, 0) + taken.get(name, 0) for name in {**used, **taken}}
        return replace(row, amounts=amounts, summary=None, known_free=None)
