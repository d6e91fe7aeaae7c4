"""What a scheduler has chosen and placement does not know of yet: to that scheduler it counts as used."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bus.vocabulary import Allocations
from placement_worker.core.class_arrays import ClassArrays, Sums
from placement_worker.core.index import Index
from placement_worker.core.row import Row
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

    def add(self, allocations: Allocations) -> None:
        for uuid, resources in allocations.items():
            held = self.of.setdefault(uuid, {})
            for name, amount in resources.items():
                if name not in held:
                    self._count[name] = self._count.get(name, 0) + 1
                held[name] = held.get(name, 0) + amount
                self._note(uuid, name, held[name])

    def take_back(self, allocations: Allocations) -> None:
        """What was promised before."""
        for uuid, resources in allocations.items():
            held = self.of.get(uuid, {})
            for name, amount in resources.items():
                left = held.get(name, 0) - amount
                if left > 0:
                    held[name] = left
                elif held.pop(name, 0):
                    self._count[name] -= 1
                self._note(uuid, name, max(left, 0))
            if not held:
                self.of.pop(uuid, None)

    def array(self, index: Index, name: str) -> Sums | None:
        """How much of this class is promised of each row; None: nothing of anybody."""
        if not self._count.get(name):
            return None
        if index is not self._index or index.layout != self._layout:
            self._place(index)
        known = self._arrays.get(name)
        if known is None:
            known = self._arrays[name] = np.zeros(len(index.at))
            self._fill(index, name, known)
        return known

    def left(self, index: Index, name: str, kind: ClassArrays) -> Sums:
        """What is free of this class beside all that is promised. To be read only."""
        promised = self.array(index, name)
        return kind.left if promised is None else kind.left - promised

    def _place(self, index: Index) -> None:
        self._index, self._layout = index, index.layout
        self._arrays = {}

    def _fill(self, index: Index, name: str, array: Sums) -> None:
        for uuid, held in self.of.items():
            if name in held and (row := index.rows.get(uuid)) is not None:
                array[row.position] = held[name]

    def _note(self, uuid: str, name: str, amount: int) -> None:
        index = self._index
        if index is not None and index.layout == self._layout and name in self._arrays:
            row = index.rows.get(uuid)
            if row is not None:
                self._arrays[name][row.position] = amount


class BesidePromises(Snapshot):
    """The trees with what is promised taken from what is free. For searches that do not pause."""

    def __init__(self, index: Index, promises: Promises) -> None:
        super().__init__(index)
        self._promises = promises

    def rows_of(self, root: str) -> list[Row]:
        return [self._less(row) for row in super().rows_of(root)]

    def row_at(self, position: int) -> Row | None:
        row = super().row_at(position)
        return None if row is None else self._less(row)

    def find(self, uuid: str) -> Row | None:
        row = super().find(uuid)
        return None if row is None else self._less(row)

    def top(self, name: str) -> Tops:
        kind = self.index.classes[name]
        promised = self._promises.array(self.index, name)
        return kind.top if promised is None else np.minimum(kind.top, kind.left - promised)

    def _less(self, row: Row) -> Row:
        promised: Mapping[str, int] | None = self._promises.of.get(row.uuid)
        if not promised:
            return row
        amounts = {name: used + promised.get(name, 0) for name, used in row.used.items()}
        return replace(row, amounts=amounts, told=None, _free=None)
