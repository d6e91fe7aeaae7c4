"""The index: all providers with their free amounts as arrays, in which searches find candidates.

Each provider has a row; a tree is identified by its root's row. The index may be a few milliseconds behind
the database; so a claim checks capacity again, in the database.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.replication import ProviderChange
from placement_worker.core.index_rows import Amounts, Bools, Row, Sums
from placement_worker.core.row_table import RowTable
from placement_worker.core.trees import ProviderState, Tree


class Index(RowTable):
    """Placement's state in memory as arrays, in which candidates are searched. It follows the
    log of changes.
    """

    def __init__(self, seen: int = 0, history: str = "") -> None:
        super().__init__()
        self.seen = seen  # the index includes all changes up to this number
        self.history = history  # id of the database's commits; empty: unknown
        self._ahead: set[int] = set()  # numbers above `seen` of applied changes; numbers between are missing
        # changes of providers that are not in the index yet, with their change numbers above `seen`
        self._early: dict[str, tuple[ProviderChange, int]] = {}
        self._put_at: dict[str, int] = {}  # root → change number above `seen` at which its tree was stored
        self.cell_facts: dict[str, RegisteredCell] = {}  # states of registered cells
        # (type, aggregate or cell) → number of its last change, if above `seen`
        self._described_at: dict[tuple[type, str], int] = {}
        # root → the last change number at which capacity grew or traits changed
        self.gave: dict[str, int] = {}
        self.gives = 0  # counts increases of free capacity, and created, changed or deleted providers
        self.snapshots: list[Callable[[str], None]] = []  # called with a root before a change of its tree

    # Changes can be applied in any order: an older change never undoes a newer one.

    def is_of(self, history: str) -> bool:
        """Return whether the index may be a copy of the database with this history id, which a fail-over
        changes. Return True if this id or the index's id is empty, which means unknown.
        """
        return not history or not self.history or history == self.history

    def knows(self, number: int) -> bool:
        """Return whether the change with this number has been applied."""
        return number <= self.seen or number in self._ahead

    @property
    def whole(self) -> bool:
        """Return whether the index is complete: no change before the newest received one is missing."""
        return not self._ahead

    def accept(
        self,
        number: int,
        changes: Iterable[ProviderChange],
        trees: Mapping[str, Tree] | None = None,
        aggregates: Iterable[Aggregate] = (),
        cells: Iterable[RegisteredCell] = (),
    ) -> Collection[str]:
        """Apply the commit with this change number to the index; `trees` are the trees that it created or
        reshaped, by root. Return the roots of the changed trees. Commits may arrive in any order, and
        repeatedly.
        """
        touched: dict[str, None] = {}
        if self.knows(number):
            return touched.keys()
        facts: tuple[Aggregate | RegisteredCell, ...] = (*aggregates, *cells)
        for fact in facts:
            self.describe(fact, number)
        trees = trees or {}
        for tree in trees.values():
            touched[tree.root] = None
            uuids = (provider.uuid for provider in tree.providers)
            known = [self.rows[uuid].root for uuid in uuids if uuid in self.rows]
            touched.update(dict.fromkeys(known))
            self.put(tree, number)
            self._gives(tree.root, *known)
        for change in changes:
            touched[change.root] = None
            if change.root not in trees and (self.use(change, number) or change.reshaped):
                self._gives(change.root)
        self._ahead.add(number)
        if self.seen + 1 not in self._ahead:
            return touched.keys()
        while self.seen + 1 in self._ahead:
            self.seen += 1
            self._ahead.remove(self.seen)
        if self._described_at:
            self._described_at = {key: at for key, at in self._described_at.items() if at > self.seen}
        if self._early:
            self._early = {key: known for key, known in self._early.items() if known[1] > self.seen}
        if self._put_at:
            self._put_at = {root: put for root, put in self._put_at.items() if put > self.seen}
        return touched.keys()

    def describe(self, fact: Aggregate | RegisteredCell, number: int) -> None:
        """Apply the description of an aggregate or cell, unless a later one was applied."""
        facts: dict[str, Any] = self.aggregate_facts if isinstance(fact, Aggregate) else self.cell_facts
        was: Aggregate | None = self.aggregate_facts.get(fact.id) if isinstance(fact, Aggregate) else None
        name = fact.id if isinstance(fact, Aggregate) else fact.name
        if number < self._described_at.get((type(fact), name), 0):
            return
        if number > self.seen:
            self._described_at[type(fact), name] = number
        if fact.gone:
            facts.pop(name, None)
        else:
            facts[name] = fact
        if isinstance(fact, Aggregate):
            self._relabel_members(was, fact)

    def use(self, change: ProviderChange, number: int) -> bool:
        """Set the used amounts of a provider from the commit `number`, unless the index has a later state of
        the provider; return whether the provider's free capacity may have increased.
        """
        row = self.rows.get(change.provider)
        if row is None:
            known = self._early.get(change.provider)
            if number > self.seen and (known is None or known[1] < number):
                self._early[change.provider] = change, number
            return True
        if row.number >= number:
            return False
        row.number = number
        row.generation = change.generation
        return self._set_free(row, change.used)

    def _gives(self, *roots: str) -> None:
        self.gives += 1
        for root in roots:
            self.gave[root] = self.gives

    def put(self, tree: Tree, number: int) -> None:
        """Store a provider tree in the index in the state after the commit `number`, unless the index has a
        later state: create, change and delete the rows of its providers.
        """
        if number < self._put_at.get(tree.root, 0):
            return
        if number > self.seen:  # not needed if `number` is up to `seen`: no older change can arrive any more
            self._put_at[tree.root] = number
        for preserve in self.snapshots:
            preserve(tree.root)
            for provider in tree.providers:
                if (row := self.rows.get(provider.uuid)) is not None:
                    preserve(row.root)
        # Leave out providers that a later change has moved to another tree.
        providers = [
            provider
            for provider in tree.providers
            if (row := self.rows.get(provider.uuid)) is None or row.root == tree.root or row.shaped <= number
        ]
        provider_ids = {provider.uuid for provider in providers}
        for uuid in self.trees.pop(tree.root, ()):
            row = self.rows.get(uuid)
            if uuid not in provider_ids and row is not None and row.root == tree.root:
                if row.number > number:  # a later change is applied: the provider moves to another tree
                    known = ProviderChange(uuid, row.root, row.generation, dict(row.used))
                    self._early[uuid] = known, row.number
                self._drop(row)
        for provider in providers:
            row = self.rows.get(provider.uuid)
            if row is not None and row.root != tree.root:  # the provider moves here from another tree
                left = tuple(uuid for uuid in self.trees.pop(row.root, ()) if uuid != row.uuid)
                if left:
                    self.trees[row.root] = left
        if provider_ids:
            self.trees[tree.root] = tuple([provider.uuid for provider in providers])
        for provider in providers:
            self._put(tree, provider, number)

    def _put(self, tree: Tree, provider: ProviderState, number: int) -> None:
        row = self.rows.get(provider.uuid)
        later = row if row is not None and row.number > number else None  # the row includes later claims
        if row is None or not self._is(row, tree, provider):
            row = self._shape(row, tree, provider)
        row.shaped = number
        if later is None:
            row.number, row.generation = number, provider.generation
            self._set_free(row, provider.used)
        elif later is not row:
            row.number, row.generation = later.number, later.generation
            self._set_free(row, later.used)
        else:
            return
        if provider.uuid in self._early:
            self.use(*self._early[provider.uuid])

    def _is(self, row: Row, tree: Tree, provider: ProviderState) -> bool:
        return (
            row.shape == provider.shape
            and row.root == tree.root
            and row.parent == provider.parent
            and row.host == (tree.host or provider.name)
            and (row.cell, row.agent, row.zone) == (tree.cell, tree.agent, tree.zone)
            and row.traits == provider.traits
            and row.aggregates == provider.aggregates
            and row.inventories == provider.inventories
        )


Tops = Amounts | Sums


class Snapshot:
    """The provider trees as they were when a search began, but always with the newest free amounts. While the
    `with` block of `held` runs, the index calls `save` with the root of a tree before it changes the tree.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.sharers: Mapping[str, set[int]] = index.sharers
        self._trees: dict[str, tuple[str, ...]] = {}
        self._rows: dict[str, Row] = {}
        self.kept_at: dict[int, Row] = {}  # position → state of a changed row before its change

    @contextmanager
    def held(self) -> Iterator[None]:
        """While the `with` block runs, this snapshot does not change with the index, so that a search in the
        block may pause.
        """
        self.sharers = {uuid: set(positions) for uuid, positions in self.index.sharers.items()}
        self.index.snapshots.append(self.save)
        try:
            yield
        finally:
            self.index.snapshots.remove(self.save)

    def save(self, root: str) -> None:
        """Keep the present state of a tree before it changes, for the search that reads this snapshot."""
        if root in self._trees:
            return
        self._trees[root] = self.index.trees.get(root, ())
        for uuid in self._trees[root]:
            row = self._rows.setdefault(uuid, self.index.rows[uuid])
            self.kept_at.setdefault(row.position, row)

    def rows_of(self, root: str) -> list[Row]:
        """Return the rows of the index for a provider tree, the root first; [] if there is no such root."""
        preserved, rows = self._rows, self.index.rows
        return [self.alter(preserved.get(uuid) or rows[uuid]) for uuid in self.members(root)]

    def members(self, root: str) -> tuple[str, ...]:
        """Return the providers of a tree at the time of the snapshot."""
        preserved = self._trees.get(root)
        return self.index.trees.get(root, ()) if preserved is None else preserved

    def top(self, name: str) -> Tops:
        """Return, for each row of the index, the largest amount of this resource class that a single claim
        can get now: the free amount, at most `max_unit`."""
        return self.index.classes[name].top

    def gives(self, name: str, asked: int) -> Bools:
        """Return a new array: for each provider of the index, whether one claim can get the amount `asked` of
        the resource class `name` now.
        """
        met: Bools = self.top(name)[: self.index.high] >= asked
        return met

    def left(self, name: str) -> Sums:
        """Return an array of the index: the free amount of a resource class in each row (may be below 0). Do
        not write to it."""
        return self.index.classes[name].left

    def free_of_trees(self, name: str) -> Sums:
        """Return an array with the free amount of a resource class in each whole tree, at the root's row of
        the index; valid until the index changes. In a tree of several providers, an overcommitted provider
        counts as 0. Do not write to the array.
        """
        index, high = self.index, self.index.high
        kind = index.classes.get(name)
        if kind is None:
            return np.zeros(high)
        left = self.left(name)[:high]
        if not index.children:
            return left
        several = np.zeros(high, np.bool_)
        several[index.root_of[np.flatnonzero(index.below[:high])]] = True
        rows = np.flatnonzero(kind.there[:high])
        amounts = left[rows]
        overcommitted = several[index.root_of[rows]]
        return index.sum_of_trees(rows, np.where(overcommitted, np.maximum(amounts, 0), amounts))

    def row_at(self, position: int) -> Row | None:
        """Return the provider at an array position at the time of the snapshot, or None."""
        row = self.kept_at.get(position) or self.index.at[position]
        return None if row is None else self.alter(row)

    def find(self, uuid: str) -> Row | None:
        """Return a provider at the time of the snapshot, or None."""
        row = self._rows.get(uuid) or self.index.rows.get(uuid)
        return None if row is None else self.alter(row)

    def alter(self, row: Row) -> Row:
        """Return a row of the index as this snapshot shows it; subclasses may count tentative choices as used
        amounts.
        """
        return row
