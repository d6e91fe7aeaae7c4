"""Views of the index for searches: as it was when the search began, minus reservations, or as if empty."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from bus.reports import EXCLUDES_SIBLINGS
from bus.vocabulary import Allocations
from placement_worker.core.index import Index
from placement_worker.core.row import Amounts, Bools, Ints, Row, Sums
from placement_worker.core.row_table import BEYOND_COUNTING

Tops = Amounts | Sums


class Snapshot:
    """The trees of the index as they were when a search began; their free amounts are always the newest.

    While the snapshot is held, the index hands over each tree before its first change.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.sharers: Mapping[str, set[int]] = index.sharers
        self._trees: dict[str, tuple[str, ...]] = {}
        self._rows: dict[str, Row] = {}
        self.kept_at: dict[int, Row] = {}  # previous states of changed rows, by position

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the index's present state for the search while it pauses."""
        self.sharers = {uuid: set(positions) for uuid, positions in self.index.sharers.items()}
        self.index.snapshots.append(self.keep)
        try:
            yield
        finally:
            self.index.snapshots.remove(self.keep)

    def keep(self, root: str) -> None:
        """Copy a provider tree before it changes."""
        if root in self._trees:
            return
        self._trees[root] = self.index.trees.get(root, ())
        for uuid in self._trees[root]:
            row = self._rows.setdefault(uuid, self.index.rows[uuid])
            self.kept_at.setdefault(row.position, row)

    def tree(self, root: Row) -> list[Row]:
        return self.rows_of(root.uuid)

    def rows_of(self, root: str) -> list[Row]:
        """Return the providers of a tree, the root first, or an empty list if there is no such root."""
        kept, rows = self._rows, self.index.rows
        return [self.alter(kept.get(uuid) or rows[uuid]) for uuid in self.members(root)]

    def members(self, root: str) -> tuple[str, ...]:
        kept = self._trees.get(root)
        return self.index.trees.get(root, ()) if kept is None else kept

    def top(self, name: str) -> Tops:
        """Return for each row the largest amount of a resource class that one claim could take."""
        return self.index.classes[name].top

    def gives(self, name: str, asked: int) -> Bools:
        """Return the rows where one claim could take this amount of a class, as a new array."""
        return self.index.classes[name].top[: self.index.high] >= asked

    def left(self, name: str) -> Sums:
        """Return the free amount of a class in each row, below 0 if overcommitted. Do not write to it."""
        return self.index.classes[name].left

    def row_at(self, position: int) -> Row | None:
        row = self.kept_at.get(position) or self.index.at[position]
        return None if row is None else self.alter(row)

    def find(self, uuid: str) -> Row | None:
        row = self._rows.get(uuid) or self.index.rows.get(uuid)
        return None if row is None else self.alter(row)

    def alter(self, row: Row) -> Row:
        """Return a row with the amounts of this snapshot instead of the index's."""
        return row


def free_of_trees(trees: Snapshot, name: str) -> Sums:
    """Return the free amounts of a resource class in whole trees, valid at roots until the next change. Do
    not write to the array.

    In a tree of several providers an overcommitted one counts as 0.
    """
    index = trees.index
    kind = index.classes.get(name)
    if kind is None:
        return np.zeros(index.high)
    left = trees.left(name)[: index.high]
    if not index.children:
        return left
    high = index.high
    several = np.zeros(high, np.bool_)
    several[index.root_of[np.flatnonzero(index.below[:high])]] = True
    rows = np.flatnonzero(kind.there[:high])
    roots, given = index.root_of[rows], left[rows]
    return _summed(roots, np.where(several[roots], np.maximum(given, 0), given), high)


def capacity_of_trees(index: Index, name: str) -> Sums:
    """Return the total amounts of a resource class in whole trees, valid at roots only."""
    kind = index.classes.get(name)
    if kind is None:
        return np.zeros(index.high)
    if not index.children:
        return kind.whole[: index.high]
    rows = np.flatnonzero(kind.there[: index.high])
    return _summed(index.root_of[rows], kind.whole[rows], index.high)


def _summed(roots: Ints, given: Sums, high: int) -> Sums:
    total = np.bincount(roots, weights=given, minlength=high)
    return np.minimum(total, float(BEYOND_COUNTING))


_NOTHING: dict[str, int] = {}


class ReservedAmounts:
    """The amounts that one scheduler has reserved, by provider, and by class in arrays over the rows."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, int]] = {}  # provider → reserved amounts, without zeros
        self.changes = 0
        self._arrays: dict[str, Sums] = {}
        self._count: dict[str, int] = {}  # class → of how many providers something is promised
        # Class → providers whose reservation is not in the array yet.
        self._unwritten: defaultdict[str, set[str]] = defaultdict(set)
        self._index: Index | None = None
        self._layout = -1

    def add(self, allocations: Allocations) -> None:
        self.changes += 1
        of, count, unwritten = self.of, self._count, self._unwritten
        for uuid, resources in allocations.items():
            held = of.get(uuid)
            if held is None:
                held = {}
            for name, amount in resources.items():
                if not amount:
                    continue
                if name in held:
                    held[name] += amount
                else:
                    held[name] = amount
                    count[name] = count.get(name, 0) + 1
                unwritten[name].add(uuid)
            if held:
                of[uuid] = held

    def withdraw(self, allocations: Allocations) -> None:
        self.changes += 1
        of, count, unwritten = self.of, self._count, self._unwritten
        for uuid, resources in allocations.items():
            held = of.get(uuid)
            if held is None:
                continue
            for name, amount in resources.items():
                left = held.get(name, 0) - amount
                if left > 0:
                    held[name] = left
                elif held.pop(name, 0):
                    count[name] -= 1
                unwritten[name].add(uuid)
            if not held:
                del of[uuid]

    def arrays(self, index: Index) -> Mapping[str, Sums]:
        """Return the reserved amounts of each resource class by row, after applying pending reservations."""
        if index is not self._index or index.layout != self._layout:
            self._index, self._layout = index, index.layout
            self._arrays = {}
            self._unwritten.clear()
            for uuid, held in self.of.items():
                for name in held:
                    self._unwritten[name].add(uuid)
        for name, uuids in self._unwritten.items():
            self._write(index, name, uuids)
        self._unwritten.clear()
        return self._arrays

    def _write(self, index: Index, name: str, uuids: Collection[str]) -> None:
        of, rows = self.of, index.rows
        if not self._count.get(name):
            self._arrays.pop(name, None)
            return
        array = self._arrays.get(name)
        if array is None:
            array = self._arrays[name] = np.zeros(len(index.at))
        there = [uuid for uuid in uuids if uuid in rows]
        reserved = [of.get(uuid, _NOTHING).get(name, 0) for uuid in there]
        array[[rows[uuid].position for uuid in there]] = reserved


class ReservedSnapshot(Snapshot):
    """The trees of the index minus the reserved amounts, for searches that do not pause."""

    def __init__(self, index: Index, reserved_amounts: ReservedAmounts) -> None:
        super().__init__(index)
        self._reserved_amounts = reserved_amounts
        high = index.high  # where nothing is yet there may be as many places again
        self._left: dict[str, Sums] = {
            name: index.classes[name].left[:high] - promised[:high]
            for name, promised in reserved_amounts.arrays(index).items()
            if name in index.classes
        }
        excluding = index.traits.get(EXCLUDES_SIBLINGS)
        self._excluded = self._excluded_by_reservations() if excluding else frozenset()
        self._changes = reserved_amounts.changes

    def _excluded_by_reservations(self) -> frozenset[str]:
        index, excluded = self.index, set[str]()
        for uuid in self._reserved_amounts.of:
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
        """Return whether the snapshot is current: the reserved amounts have not changed since."""
        return self._reserved_amounts.changes == self._changes

    def top(self, name: str) -> Tops:
        top, left = self.index.classes[name].top, self._left.get(name)
        return top if left is None else np.minimum(top[: len(left)], left)

    def gives(self, name: str, asked: int) -> Bools:
        left = self._left.get(name)
        if left is None:
            return super().gives(name, asked)
        kind = self.index.classes[name]
        met: Bools = left >= asked
        if kind.capped:
            met &= kind.top[: len(left)] >= asked
        return met

    def left(self, name: str) -> Sums:
        left = self._left.get(name)
        return self.index.classes[name].left if left is None else left

    def alter(self, row: Row) -> Row:
        if row.uuid in self._excluded:
            row = replace(row, told=None, known_free=None, excluded=True)
        promised: Mapping[str, int] | None = self._reserved_amounts.of.get(row.uuid)
        if not promised:
            return row
        used = row.used  # of the existing classes; more if a removed class is still in use
        amounts = {name: used.get(name, 0) + promised.get(name, 0) for name in {**used, **promised}}
        return replace(row, amounts=amounts, told=None, known_free=None)


class AsIfEmpty(Snapshot):
    """The trees of the index as if nothing were allocated."""

    def alter(self, row: Row) -> Row:
        return replace(row, amounts={}, told=None, known_free=None, excluded=False)

    def gives(self, name: str, asked: int) -> Bools:
        met: Bools = self.top(name)[: self.index.high] >= asked
        return met

    def top(self, name: str) -> Tops:
        kind = self.index.classes[name]
        if not kind.capped:
            return kind.whole
        most = kind.whole.copy()
        for position in np.flatnonzero(kind.there).tolist():
            row = self.index.at[position]
            if row is not None:
                most[position] = min(most[position], row.inventories[name].max_unit)
        return most
