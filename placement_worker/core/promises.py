"""What a scheduler has chosen and placement does not know of yet: to that scheduler it counts as used."""

from collections.abc import Iterable, Mapping
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

    A provider's place is looked up anew when the index is another, or laid out otherwise.
    """

    def __init__(self) -> None:
        self.of: dict[str, Promised] = {}  # provider → how much of what
        self._arrays: dict[str, Sums] = {}
        self._count: dict[str, int] = {}  # class → of how many providers something is promised
        self._index: Index | None = None
        self._layout = -1
        self._lent = False  # a search has these arrays: they change no more

    def add(self, allocations: Allocations) -> None:
        self._own()
        for uuid, resources in allocations.items():
            held = self.of.get(uuid)
            if held is None:
                held = self.of[uuid] = {}
            for name, amount in resources.items():
                before = held.get(name)
                if before is None:
                    self._count[name] = self._count.get(name, 0) + 1
                held[name] = amount if before is None else before + amount
            self._note(uuid, held, resources)

    def take_back(self, allocations: Allocations) -> None:
        """What was promised before."""
        self._own()
        for uuid, resources in allocations.items():
            held = self.of.get(uuid, {})
            for name, amount in resources.items():
                left = held.get(name, 0) - amount
                if left > 0:
                    held[name] = left
                elif held.pop(name, 0):
                    self._count[name] -= 1
            self._note(uuid, held, resources)
            if not held:
                self.of.pop(uuid, None)

    def arrays(self, index: Index) -> Mapping[str, Sums]:
        """How much of each class is promised of each row, by now. Where nothing is, the class is missing."""
        if index is not self._index or index.layout != self._layout:
            self._place(index)
        self._lent = True
        return self._arrays

    def _own(self) -> None:
        if self._lent:
            self._arrays = {name: array.copy() for name, array in self._arrays.items()}
            self._lent = False

    def _place(self, index: Index) -> None:
        self._index, self._layout = index, index.layout
        self._arrays, self._lent = {}, False
        for uuid, held in self.of.items():
            self._note(uuid, held, held)

    def _note(self, uuid: str, held: Promised, names: Iterable[str]) -> None:
        """How much of these is promised of it now."""
        index = self._index
        if index is None or index.layout != self._layout:
            return
        row, arrays = index.rows.get(uuid), self._arrays
        for name in names:
            array = arrays.get(name)
            if not self._count.get(name):
                arrays.pop(name, None)
            elif row is not None:
                if array is None:
                    array = arrays[name] = np.zeros(len(index.at))
                array[row.position] = held.get(name, 0)


class BesidePromises(Snapshot):
    """The trees with what is promised taken from what is free. For searches that do not pause.

    Arrays are of the moment it is made, rows of the moment they are asked for.
    """

    def __init__(self, index: Index, promises: Promises) -> None:
        super().__init__(index)
        self._promises = promises
        self._promised = promises.arrays(index)
        self._left: dict[str, Sums] = {}

    @property
    def current(self) -> bool:
        """Is still the same promised?"""
        return self._promises.arrays(self.index) is self._promised

    def rows_of(self, root: str) -> list[Row]:
        return [self._less(row) for row in super().rows_of(root)]

    def row_at(self, position: int) -> Row | None:
        row = super().row_at(position)
        return None if row is None else self._less(row)

    def find(self, uuid: str) -> Row | None:
        row = super().find(uuid)
        return None if row is None else self._less(row)

    def top(self, name: str) -> Tops:
        top = self.index.classes[name].top
        if name not in self._promised:
            return top
        left = self.left(name)
        return np.minimum(top[: len(left)], left)

    def gives(self, name: str, asked: int) -> Bools:
        if name not in self._promised:
            return super().gives(name, asked)
        kind, high = self.index.classes[name], self.index.high
        met: Bools = self.left(name)[:high] >= asked
        if kind.capped:
            met &= kind.top[:high] >= asked
        return met

    def left(self, name: str) -> Sums:
        left = self._left.get(name)
        if left is None:
            left, promised = self.index.classes[name].left, self._promised.get(name)
            if promised is not None:
                high = self.index.high  # where nothing is yet there may be as many places again
                left = self._left[name] = left[:high] - promised[:high]
        return left

    def _less(self, row: Row) -> Row:
        promised: Mapping[str, int] | None = self._promises.of.get(row.uuid)
        if not promised:
            return row
        used = row.used  # of what it has; more where something is used that it has no more
        amounts = {name: used.get(name, 0) + promised.get(name, 0) for name in {**used, **promised}}
        return replace(row, amounts=amounts, told=None, known_free=None)
