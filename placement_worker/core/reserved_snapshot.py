"""Placement's index with the reservations of one scheduler."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bus.reports import EXCLUDES_SIBLINGS
from placement_worker.core.index import Bools, Index, ReservedAmounts, Row, Snapshot, Sums, Tops


class ReservedSnapshot(Snapshot):
    """The index with a scheduler's reservations counted as used. Searches in it must not pause."""

    def __init__(self, index: Index, reserved_amounts: ReservedAmounts) -> None:
        super().__init__(index)
        self._reserved_amounts = reserved_amounts
        high = index.high  # number of rows in use; the arrays of resource classes are longer
        self._left: dict[str, Sums] = {
            name: index.classes[name].left[:high] - reserved[:high]
            for name, reserved in reserved_amounts.arrays(index).items()
            if name in index.classes
        }
        # class → row → largest amount of one claim, for rows with a negative reservation
        self._raised: dict[str, dict[int, int]] = {}
        for uuid, name in reserved_amounts.negative:
            row = index.rows.get(uuid)
            if row is not None and name in row.inventories:
                self._raised.setdefault(name, {})[row.position] = row.inventories[name].max_unit
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
        """Return whether the scheduler's reservations are unchanged since this snapshot was made."""
        return self._reserved_amounts.changes == self._changes

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
        Positive reservations are not subtracted; a provider with a negative reservation has its `max_unit`.
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
        reserved: Mapping[str, int] | None = self._reserved_amounts.of.get(row.uuid)
        if not reserved:
            return row
        used = row.used  # may contain removed resource classes that are still in use
        amounts = {name: used.get(name, 0) + reserved.get(name, 0) for name in {**used, **reserved}}
        return replace(row, amounts=amounts, summary=None, known_free=None)
