"""The trees as if nothing were allocated: finds the hosts that could ever satisfy a request."""

from dataclasses import replace

import numpy as np

from placement_worker.core.row import Row
from placement_worker.core.row_set import Bools
from placement_worker.core.snapshot import Snapshot, Tops


class AsIfEmpty(Snapshot):
    """For searches that do not pause."""

    def rows_of(self, root: str) -> list[Row]:
        return [_emptied(row) for row in super().rows_of(root)]

    def row_at(self, position: int) -> Row | None:
        row = super().row_at(position)
        return None if row is None else _emptied(row)

    def find(self, uuid: str) -> Row | None:
        row = super().find(uuid)
        return None if row is None else _emptied(row)

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


def _emptied(row: Row) -> Row:
    return replace(row, amounts={}, told=None, known_free=None, excluded=False)
