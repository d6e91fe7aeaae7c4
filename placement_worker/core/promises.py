"""What a scheduler has chosen and placement does not know of yet: to that scheduler it counts as used."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bus.vocabulary import Allocations
from placement_worker.core.class_arrays import Sums
from placement_worker.core.index import Index
from placement_worker.core.row import Row
from placement_worker.core.row_set import Bools
from placement_worker.core.snapshot import Snapshot, Tops

Promised = dict[str, int]


class Promises:
    """By provider, and for each class in an array that goes with an index's rows.

    The arrays are of one index as it was laid out when they were made: where it is another they are made anew.
    """

    def __init__(self) -> None:
        self.of: dict[str, Promised] = {}  # provider → how much of what; none of it nought
        self.changes = 0
        self._arrays: dict[str, Sums] = {}
        self._count: dict[str, int] = {}  # class → of how many providers something is promised
        self._index: Index | None = None
        self._layout = -1

    def add(self, allocations: Allocations) -> None:
        self.changes += 1
        for uuid, resources in allocations.items():
            position = self._position(uuid)
            held = self.of.get(uuid, {})
            for name, amount in resources.items():
                if not amount:
                    continue
                if name in held:
                    amount += held[name]
                else:
                    self._count[name] = self._count.get(name, 0) + 1
                held[name] = amount
                if position is not None:
                    self._array(name)[position] = amount
            if held:
                self.of[uuid] = held

    def take_back(self, allocations: Allocations) -> None:
        """What was promised before."""
        self.changes += 1
        for uuid, resources in allocations.items():
            position = self._position(uuid)
            held = self.of.get(uuid, {})
            for name, amount in resources.items():
                if name not in held:
                    continue
                left = held[name] = max(held[name] - amount, 0)
                if position is not None:
                    self._array(name)[position] = left
                if not left:
                    del held[name]
                    self._count[name] -= 1
                    if not self._count[name]:
                        self._arrays.pop(name, None)
            if not held:
                self.of.pop(uuid, None)

    def arrays(self, index: Index) -> Mapping[str, Sums]:
        """How much of each class is promised of each row at this moment. Where nothing is, it is missing."""
        if index is not self._index or index.layout != self._layout:
            self._index, self._layout = index, index.layout
            self._arrays = {}
            for uuid, held in self.of.items():
                position = self._position(uuid)
                if position is not None:
                    for name, amount in held.items():
                        self._array(name)[position] = amount
        return self._arrays

    def _position(self, uuid: str) -> int | None:
        """Its place in the arrays; None: it has none, or they are made anew anyway."""
        index = self._index
        if index is None or index.layout != self._layout:
            return None
        row = index.rows.get(uuid)
        return None if row is None else row.position

    def _array(self, name: str) -> Sums:
        array = self._arrays.get(name)
        if array is None:
            array = self._arrays[name] = np.zeros(0 if self._index is None else len(self._index.at))
        return array


class BesidePromises(Snapshot):
    """The trees with what is promised taken from what is free. For searches that do not pause.

    Arrays are of the moment it is made, rows of the moment they are asked for.
    """

    def __init__(self, index: Index, promises: Promises) -> None:
        super().__init__(index)
        self._promises = promises
        high = index.high  # where nothing is yet there may be as many places again
        self._left: dict[str, Sums] = {
            name: index.classes[name].left[:high] - promised[:high]
            for name, promised in promises.arrays(index).items()
            if name in index.classes
        }
        self._changes = promises.changes

    @property
    def current(self) -> bool:
        """Is still the same promised?"""
        return self._promises.changes == self._changes

    def rows_of(self, root: str) -> list[Row]:
        return [self._less(row) for row in super().rows_of(root)]

    def row_at(self, position: int) -> Row | None:
        row = super().row_at(position)
        return None if row is None else self._less(row)

    def find(self, uuid: str) -> Row | None:
        row = super().find(uuid)
        return None if row is None else self._less(row)

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

    def _less(self, row: Row) -> Row:
        promised: Mapping[str, int] | None = self._promises.of.get(row.uuid)
        if not promised:
            return row
        used = row.used  # of what it has; more where something is used that it has no more
        amounts = {name: used.get(name, 0) + promised.get(name, 0) for name in {**used, **promised}}
        return replace(row, amounts=amounts, told=None, known_free=None)
