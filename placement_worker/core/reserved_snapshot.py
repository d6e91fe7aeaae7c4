"""Placement's index with the reservations of one scheduler."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bus.reports import EXCLUDES_SIBLINGS
from placement_worker.core.index import Index, Snapshot, Tops
from placement_worker.core.row import Bools, ReservedAmounts, Row, Sums


class ReservedSnapshot(Snapshot):
    """The index with a scheduler's reservations counted as used, for searches that do not pause."""

    def __init__(self, index: Index, reserved_amounts: ReservedAmounts) -> None:
        super().__init__(index)
        self._reserved_amounts = reserved_amounts
        high = index.high  # the arrays of classes are longer than the rows in use
        self._left: dict[str, Sums] = {
            name: index.classes[name].left[:high] - reserved[:high]
            for name, reserved in reserved_amounts.arrays(index).items()
            if name in index.classes
        }
        self._raised = self._raised_by_reservations()
        excluding = index.traits.get(EXCLUDES_SIBLINGS)
        self._excluded = self._excluded_by_reservations() if excluding else frozenset()
        self._changes = reserved_amounts.changes

    def _raised_by_reservations(self) -> dict[str, dict[int, int]]:
        """Return the largest amount of one claim at each row with a negative reserved amount, by class."""
        found: dict[str, dict[int, int]] = {}
        for uuid, amounts in self._reserved_amounts.of.items():
            if (row := self.index.rows.get(uuid)) is None:
                continue
            for name, amount in amounts.items():
                if amount < 0 and (inventory := row.inventories.get(name)) is not None:
                    left = int(self._left[name][row.position])
                    found.setdefault(name, {})[row.position] = min(left, inventory.max_unit)
        return found

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
        top, left = self.index.classes[name].top, self._left.get(name)
        if left is None:
            return top
        found: Tops = np.minimum(top[: len(left)], left)
        for position, amount in self._raised.get(name, {}).items():
            found[position] = amount
        return found

    def gives(self, name: str, asked: int) -> Bools:
        left = self._left.get(name)
        if left is None:
            return super().gives(name, asked)
        kind = self.index.classes[name]
        met: Bools = left >= asked
        if kind.capped:
            met &= self.top(name) >= asked
        return met

    def left(self, name: str) -> Sums:
        left = self._left.get(name)
        return self.index.classes[name].left if left is None else left

    def alter(self, row: Row) -> Row:
        if row.uuid in self._excluded:
            row = replace(row, summary=None, known_free=None, excluded=True)
        reserved: Mapping[str, int] | None = self._reserved_amounts.of.get(row.uuid)
        if not reserved:
            return row
        used = row.used  # of the existing classes; more if a removed class is still in use
        amounts = {name: used.get(name, 0) + reserved.get(name, 0) for name in {**used, **reserved}}
        return replace(row, amounts=amounts, summary=None, known_free=None)
