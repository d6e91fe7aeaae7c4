"""The trees as they were when a search began: a long search pauses, and they change meanwhile."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from placement_worker.core.class_arrays import Amounts, Sums
from placement_worker.core.index import Index
from placement_worker.core.row import Row
from placement_worker.core.row_set import Bools

Tops = Amounts | Sums


class Snapshot:
    """One search's sight of the index. Which rows there are stays; what is free of them is always the newest.

    While it is held, the index hands over each tree before it changes it for the first time.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.sharers: Mapping[str, set[int]] = index.sharers
        self._trees: dict[str, tuple[str, ...]] = {}
        self._rows: dict[str, Row] = {}
        self.kept_at: dict[int, Row] = {}  # previous states of changed rows, by position

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the present state while the search pauses, from before the first pause on."""
        self.sharers = {uuid: set(positions) for uuid, positions in self.index.sharers.items()}
        self.index.snapshots.append(self.keep)
        try:
            yield
        finally:
            self.index.snapshots.remove(self.keep)

    def keep(self, root: str) -> None:
        """Copy the tree before it changes."""
        if root in self._trees:
            return
        self._trees[root] = self.index.trees.get(root, ())
        for uuid in self._trees[root]:
            row = self._rows.setdefault(uuid, self.index.rows[uuid])
            self.kept_at.setdefault(row.position, row)

    def tree(self, root: Row) -> list[Row]:
        return self.rows_of(root.uuid)

    def rows_of(self, root: str) -> list[Row]:
        """Return the providers of this tree, the root first, or an empty list if there is no such root."""
        kept, rows = self._rows, self.index.rows
        return [kept.get(uuid) or rows[uuid] for uuid in self.members(root)]

    def members(self, root: str) -> tuple[str, ...]:
        """Return the ids of the tree's providers."""
        kept = self._trees.get(root)
        return self.index.trees.get(root, ()) if kept is None else kept

    def top(self, name: str) -> Tops:
        """Return, for each row, the largest amount of the class that one more claim could take; 0 or less
        means no capacity.
        """
        return self.index.classes[name].top

    def gives(self, name: str, asked: int) -> Bools:
        """Return the rows that have this amount of the class for one claim. The caller owns the array."""
        return self.index.classes[name].top[: self.index.high] >= asked

    def left(self, name: str) -> Sums:
        """Return the free amount of each row, negative if overcommitted. Do not write to it."""
        return self.index.classes[name].left

    def row_at(self, position: int) -> Row | None:
        return self.kept_at.get(position) or self.index.at[position]

    def find(self, uuid: str) -> Row | None:
        return self._rows.get(uuid) or self.index.rows.get(uuid)
