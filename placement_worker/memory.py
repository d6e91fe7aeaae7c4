"""Keeps placement's index up to date: applies commits of all placement processes, reads missed changes."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Protocol

import numpy as np

from bus.aggregates import Aggregate
from bus.candidates import ALIKE, Bools, Floats, FreeProvider, Ints, OnChange, OnWakes
from bus.cells import RegisteredCell
from bus.decisions import NearMiss, Removal
from bus.domains import HOST
from bus.errors import Unavailable
from bus.queries import Candidate, FindCandidates
from bus.replication import ChangesFound, PlacementChanged
from bus.reports import EXCLUDES_SIBLINGS
from bus.sql.database import Database
from bus.vocabulary import Allocations
from placement_worker.core.explain import NEAREST, UNSEEN, UNSEEN_CODE, explain, nearest
from placement_worker.core.fits import BREATH, Fit, FitFinder, SearchPlan, plan
from placement_worker.core.index import (
    Amounts,
    Index,
    IndexPacking,
    Row,
    RowSet,
    Snapshot,
    Sums,
    Tops,
    lone_candidate,
    sums,
)
from placement_worker.core.search import PATIENCE, TOGETHER, at_once, candidate
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


# Section: finds candidates for a scheduler in the index of the same process, less what the scheduler's
# tentative choices take.


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


HOST_PATIENCE = 20_000  # steps without a result on one host, after which the search continues on other hosts
_DOUBLES = 4  # sets of allocations that were found before, for each set that is wanted


class HasIndex(Protocol):
    """The interface of an object with placement's index, which a reload replaces by a new index."""

    @property
    def index(self) -> Index: ...

    def watch(self, on_change: OnChange) -> None: ...

    def watch_wakes(self, on_wakes: OnWakes) -> None: ...

    async def fresh(self) -> None: ...


class IndexedSource:
    """Finds candidates in an index, with one scheduler's tentative choices counted as used; implements
    `CandidateSource`.
    """

    def __init__(self, memory: HasIndex) -> None:
        self._memory = memory
        self.packing = IndexPacking()
        self._known: Index | None = None  # set at the first use: a replica may not be loaded yet
        self._before = 0  # sum of the `layout` counters of replaced indexes

    @property
    def seen(self) -> int:
        return self._memory.index.seen

    async def fresh(self) -> None:
        await self._memory.fresh()

    @property
    def layout(self) -> int:
        index = self._memory.index
        if index is not self._known:
            if self._known is not None:
                self._before += self._known.layout + 1
            self._known = index
        return self._before + index.layout

    @property
    def size(self) -> int:
        return self._memory.index.high

    @property
    def aggregates(self) -> Mapping[str, Aggregate]:
        return self._memory.index.aggregate_facts

    @property
    def cells(self) -> Mapping[str, RegisteredCell]:
        return self._memory.index.cell_facts

    def position(self, root: str) -> int | None:
        row = self._memory.index.rows.get(root)
        return row.position if row is not None and row.parent is None else None

    def named(self, host: str) -> Sequence[str]:
        if self.position(host) is not None:
            return (host,)
        return tuple(sorted(self._memory.index.called.get(host, ())))

    def hosts(self) -> Sequence[Row]:
        index = self._memory.index
        rows = [index.at[position] for position in np.flatnonzero(index.roots[: index.high]).tolist()]
        return [row for row in rows if row is not None]

    def labels(self, level: str) -> tuple[Ints, Sequence[str]]:
        index = self._memory.index
        high = index.high
        if level == HOST:
            roots = index.roots[:high]
            names = ["", *("" if row is None else row.uuid for row in index.at[:high])]
            return np.where(roots, np.arange(1, high + 1), 0), names
        column = index.labels.get(level)
        if column is None:
            return np.zeros(high, np.intp), [""]
        return column.ids[:high], column.names

    def search(self, question: FindCandidates, *, empty: bool = False) -> "HostSearch":
        return HostSearch(self._memory.index, self.packing, question, empty=empty)

    def free(self, root: str) -> Mapping[str, int]:
        index = self._memory.index
        members = index.trees.get(root, ())
        if len(members) == 1:
            return index.rows[root].free
        return sums([index.rows[uuid] for uuid in members])[0]

    def having(self, resource_class: str, amount: int) -> int:
        kind = self._memory.index.classes.get(resource_class)
        return 0 if kind is None else int(np.count_nonzero(kind.top >= amount))

    @property
    def sharing(self) -> Mapping[str, Collection[str]]:
        index = self._memory.index
        found: dict[str, set[str]] = {}
        for position in set[int]().union(*index.sharers.values()) if index.sharers else ():
            row = index.at[position]
            if row is not None:
                found.setdefault(row.root, set()).update(row.capacity)
        return found

    def tree_of(self, provider: str) -> Sequence[Row]:
        index = self._memory.index
        row = index.rows.get(provider)
        return () if row is None else [index.rows[uuid] for uuid in index.trees.get(row.root, ())]

    def watch(self, on_change: OnChange) -> None:
        self._memory.watch(on_change)

    def watch_wakes(self, on_wakes: OnWakes) -> None:
        self._memory.watch_wakes(on_wakes)

    def watch_for_more(self, on_change: OnChange) -> None:
        known: Index | None = None
        reported = 0

        def some(roots: Sequence[str], described: Sequence[str]) -> None:
            nonlocal known, reported
            index = self._memory.index
            if index is known:
                roots = [root for root in roots if index.gave.get(root, 0) > reported]
            known, reported = index, index.gives
            if roots or described:
                on_change(roots, described)

        self._memory.watch(some)


class AsIfEmpty(Snapshot):
    """The provider trees of the index as if no consumer had allocations."""

    def alter(self, row: Row) -> Row:
        return replace(row, amounts={}, summary=None, known_free=None, excluded=False)

    def top(self, name: str) -> Amounts | Sums:
        kind = self.index.classes[name]
        if not kind.capped:
            return kind.whole
        most = kind.whole.copy()
        for position in np.flatnonzero(kind.there).tolist():
            row = self.index.at[position]
            if row is not None:
                most[position] = min(most[position], row.inventories[name].max_unit)
        return most


class HostSearch:
    """One query for candidates, evaluated for all hosts of an index; implements `CandidateSearch`."""

    def __init__(self, index: Index, packing: IndexPacking, question: FindCandidates, *, empty: bool) -> None:
        self._index = index
        self._packing = packing
        self._packed = PackedSnapshot(index, packing)
        self._trees: Snapshot = AsIfEmpty(index) if empty else self._packed
        self._plan = made = plan(self._trees, question, named=True)
        self._finder = FitFinder(self._trees, made)
        self._lone = not made.slots  # each host has only one possible set of allocations, on its root
        self._asked = tuple(made.query.groups[0].resources.items())  # only used for hosts of one provider
        self.considered = made.considered
        self.positions: Ints = np.flatnonzero(self._finder.anchors)
        self._free: dict[str, Floats] = {}
        self._without: set[int] = set()  # indices of hosts where no allocation was found
        self._unseen: set[int] = set()  # indices of hosts whose search was stopped early
        self._spent = 0  # number of search steps without a result on all hosts, limited by PATIENCE

    def any_of(self, resource_class: str) -> bool:
        kind = self._index.classes.get(resource_class)
        return kind is not None and kind.providers > 0

    def free(self, resource_class: str) -> Floats:
        free = self._free.get(resource_class)
        if free is None:
            free = self._packed.free_of_trees(resource_class).take(self.positions)
            self._free[resource_class] = free
            free.flags.writeable = False  # callers share the array
        return free

    def capacity(self, resource_class: str) -> Floats:
        return self._index.capacity_of_trees(resource_class).take(self.positions)

    def has(self, trait: str) -> Bools:
        return self._among(self._index.traits.get(trait))

    def within(self, aggregate: str) -> Bools:
        return self._among(self._index.aggregates.get(aggregate))

    def _among(self, rows: RowSet | None) -> Bools:
        if rows is None:
            return np.zeros(len(self.positions), np.bool_)
        return rows.mask(self._index.high).take(self.positions)

    def providers(self) -> "PackedProviders":
        return PackedProviders(self._index, self._packed)

    def tree(self, position: int) -> Sequence[FreeProvider]:
        trees, index, uuid = self._trees, self._index, self.host(position).uuid
        if trees is self._packed and not self._packed.excludes:  # faster than altered rows
            rows = [index.rows[each] for each in index.trees[uuid]]
            free = [self._free_now(row) for row in rows]
        else:
            rows = trees.rows_of(uuid)
            free = [row.free for row in rows]
        return [
            FreeProvider(row.position, row.uuid, row.parent, left, row.capacity, row.traits)
            for row, left in zip(rows, free, strict=True)
        ]

    def host(self, position: int) -> Row:
        row = self._index.at[position]
        if row is None:
            raise LookupError(f"there is no host at {position}")
        return row

    def amounts(self, position: int) -> tuple[Mapping[str, int], Mapping[str, int]]:
        index, row = self._index, self.host(position)
        if not index.children or len(index.trees[row.uuid]) == 1:
            return self._free_now(row), row.capacity
        return sums(self._trees.rows_of(row.uuid))

    def _free_now(self, row: Row) -> dict[str, int]:
        free, taken = row.known_free or row.free, self._packing.taken.get(row.uuid)
        return {name: left - taken.get(name, 0) for name, left in free.items()} if taken else free

    def ways(
        self, position: int, most: int, within: Sequence[Allocations] = (), *, distinct: bool = False
    ) -> Sequence[Candidate]:
        finder = self._finder
        row = self._index.at[position]
        if row is None or not finder.anchors.item(position):
            return ()
        if self._lone or finder.alone(row):  # only check again whether choices have taken the capacity
            free = self._free_now(row)
            for name, asked in self._asked:
                if free[name] < asked:
                    self._without.add(position)
                    return ()
            return (lone_candidate(row, self._plan.query.groups[0], free),)
        anchor = self._trees.row_at(position)
        if anchor is None:
            return ()
        key_of = _AlikeProviders(self._trees.rows_of(anchor.uuid)).key if distinct else _key
        return self._candidates(anchor, self._fits(anchor, most, within, key_of))

    def _candidates(self, anchor: Row, fits: tuple[list[Fit], bool]) -> Sequence[Candidate]:
        position, (found, whole) = anchor.position, fits
        self._unseen.discard(position)
        if not found:
            if whole:
                self._without.add(position)
            elif position not in self._without:
                self._unseen.add(position)
            return ()
        free, capacity = sums(self._trees.rows_of(anchor.uuid))
        return [candidate(fit, free, capacity, capacities=len(found) > 1) for fit in found]

    def _fits(
        self,
        anchor: Row,
        most: int,
        within: Sequence[Allocations],
        key_of: Callable[[Allocations], Hashable | None],
    ) -> tuple[list[Fit], bool]:
        """Return up to `most` sets of allocations that fit on a host, with different keys, and whether the
        search was complete.
        """
        found: list[Fit] = []
        seen: set[Hashable] = set()
        if self._spent >= 2 * PATIENCE:
            return found, False
        patience, spent, doubles = HOST_PATIENCE if self._spent < PATIENCE else 0, 0, 0
        fits = (self._finder.fits(anchor, check_again=True, within=each) for each in within or (None,))
        for fit in chain.from_iterable(fits):
            if fit is not None:
                key = key_of(fit.allocations)
                if key is None or key in seen:
                    doubles += 1  # such as sets of groups that can exchange their providers
                    if doubles > _DOUBLES * most:
                        break
                    continue
                found.append(fit)
                seen.add(key)
                if len(found) == most:
                    break
            else:
                spent += BREATH
                if spent > patience:
                    break
        self._spent += spent
        return found, spent <= patience

    def removals(self) -> Sequence[Removal]:
        """Return how many hosts each part of a query (resource, trait, aggregate, ...) removed. If some host
        fits, the rules about combined providers count only those hosts on which a search has already found
        nothing.
        """
        made = self._as_it_is()
        fitting = self._fitting(made)
        if not fitting:
            return at_once(explain(self._trees, made))[0]
        removals = tuple(made.removals)
        unseen = self._not_known(made)
        if fitting + unseen < made.count:
            removed, left = made.count - fitting - unseen, fitting + unseen
            removals += (Removal(constraint=TOGETHER, removed=removed, left=left, code="together"),)
        if unseen:
            removals += (Removal(constraint=UNSEEN, removed=unseen, left=fitting, code=UNSEEN_CODE),)
        return removals

    def nearest(self, roots: Collection[str] = (), most: int = NEAREST) -> Sequence[NearMiss]:
        made = self._as_it_is()
        if roots:
            return nearest(self._trees, made, roots, most)
        if self._fitting(made):
            return ()
        return at_once(explain(self._trees, made))[1] if made.count else nearest(self._trees, made, (), most)

    def _as_it_is(self) -> SearchPlan:
        if isinstance(self._trees, PackedSnapshot):
            if self._trees is self._packed and self._packed.current:
                return self._plan
            self._trees = PackedSnapshot(self._index, self._packing)
        return plan(self._trees, self._plan.query, named=True)

    def _fitting(self, made: SearchPlan) -> int:
        left = made.left & self._finder.anchors
        # Search these hosts again: choices may have been released since.
        self._without = {host for host in self._without if not left[host] or not self.ways(host, 1)}
        without = sum(bool(left[position]) for position in self._without) + self._not_known(made)
        return made.count - without if int(np.count_nonzero(left)) > without else 0

    def _not_known(self, made: SearchPlan) -> int:
        return sum(bool(made.left[position]) for position in self._unseen)


class PackedProviders:
    """The rows of an index with a scheduler's choices; implements `ProviderArrays`."""

    def __init__(self, index: Index, packed: PackedSnapshot) -> None:
        self._index = index
        self._packed = packed
        self.layout = index, packed.packing, index.layout
        self.shaped = index, index.shaped
        self.uses = index.uses

    @property
    def host(self) -> Ints:
        return self._index.root_of[: self._index.high]

    def used_since(self, uses: int) -> Ints | None:
        # A choice of one provider also takes the siblings that it excludes.
        rows = None if self._index.traits.get(EXCLUDES_SIBLINGS) else self._index.used_since(uses)
        return None if rows is None else np.array(sorted(set(rows)), np.intp)

    def any_of(self, resource_class: str) -> bool:
        kind = self._index.classes.get(resource_class)
        return kind is not None and kind.providers > 0

    def free(self, resource_class: str) -> Floats:
        return self._packed.left(resource_class)[: self._index.high]

    def capacity(self, resource_class: str) -> Floats:
        return self._index.classes[resource_class].whole[: self._index.high]

    def has(self, trait: str) -> Bools:
        rows = self._index.traits.get(trait)
        return np.zeros(self._index.high, np.bool_) if rows is None else rows.mask(self._index.high)

    def shared(self, resource_class: str) -> Bools:
        index, served = self._index, np.zeros(self._index.high, np.bool_)
        for position in set[int]().union(*index.sharers.values()):
            row = index.at[position]
            if row is not None and resource_class in row.inventories:
                served[index.reach(position)] = True
        return served


class _AlikeProviders:
    """Finds sets of allocations of a host that differ only by providers which are alike."""

    def __init__(self, rows: Sequence[Row]) -> None:
        parents = {row.parent for row in rows}
        kinds: dict[Hashable, int] = {}
        self._kind: dict[str, int] = {}  # provider → number of its kind; providers of one kind are alike
        for row in rows:
            kind: Hashable = row.uuid
            if row.uuid not in parents and row.parent is not None:  # a device without devices of its own
                # equal inventories of the index share one object
                kind = row.parent, id(row.inventories), (*row.free.values(),), row.traits, row.aggregates
            self._kind[row.uuid] = kinds.setdefault(kind, len(kinds))
        self._seen: dict[Hashable, int] = {}

    def key(self, allocations: Allocations) -> Hashable | None:
        """Return the key of a set of allocations; None if ALIKE sets that are like it were found."""
        of_kinds = Counter(
            [(self._kind.get(uuid, uuid), *sorted(asked.items())) for uuid, asked in allocations.items()]
        )
        kind = frozenset(of_kinds.items())
        self._seen[kind] = count = self._seen.get(kind, 0) + 1
        return None if count > ALIKE else _key(allocations)


def _key(allocations: Allocations) -> Hashable:
    return frozenset([(uuid, *sorted(asked.items())) for uuid, asked in allocations.items()])
