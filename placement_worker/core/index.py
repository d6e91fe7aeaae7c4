"""What there is and what is free, in flat arrays: the memory that candidates come from.

One row a provider; only roots are offered for now, so a nested tree is matched on its root alone. The index
may be a few milliseconds behind the database; the claim is the judge.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bus.vocabulary import Inventory, ProviderChange
from placement_worker.core.trees import ProviderState, Tree

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

FIRST_ROWS = 1024
INTERNED = 100_000
BEYOND_COUNTING = 2**62  # an overcommit ratio may be enormous; an int64 is not
BESIDE = 160  # bytes of a candidate that every provider has: ids, numbers, brackets

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True, eq=False)
class Row:
    """A provider, ready to be offered. Its dicts are replaced, never changed: candidates carry them away."""

    position: int
    uuid: str
    parent: str | None
    root: str
    host: str
    cell: str
    agent: str
    zone: str
    generation: int
    shapes: dict[str, int]
    inventories: dict[str, Inventory]
    capacity: dict[str, int]
    used: Mapping[str, int]
    free: dict[str, int]
    traits: tuple[str, ...]
    aggregates: tuple[str, ...]
    number: int  # the last change it knows of
    size: int  # about how many bytes it takes in an answer


@dataclass(slots=True, eq=False)
class Class:
    """One resource class over all providers."""

    top: Ints  # the most one claim could take now: what is free, within max_unit; 0 where there is none
    least: Ints  # min_unit
    step: Ints
    picky: int = 0  # how many have a min_unit or step_size other than 1


class Index:
    def __init__(self, seen: int = 0) -> None:
        self.seen = seen  # every change up to this number is in
        self._ahead: set[int] = set()  # and these beyond it
        self._early: dict[str, tuple[ProviderChange, int]] = {}  # beyond it, of providers not heard of yet
        self.rows: dict[str, Row] = {}
        self.trees: dict[str, tuple[str, ...]] = {}  # root → its providers
        self._put_at: dict[str, int] = {}  # root → the change that shaped its tree last
        self.at: list[Row | None] = [None] * FIRST_ROWS
        self.high = 0  # rows in use lie below
        self._free_rows: list[int] = []
        self.roots: Bools = np.zeros(FIRST_ROWS, np.bool_)
        self.classes: dict[str, Class] = {}
        self.cells: dict[str, Bools] = {}
        self.traits: dict[str, Bools] = {}
        self.aggregates: dict[str, Bools] = {}
        self._interned: dict[Any, Any] = {}

    # Changes, in any order: an older one never undoes a newer one.

    def knows(self, number: int) -> bool:
        return number <= self.seen or number in self._ahead

    def accept(
        self, number: int, changes: Iterable[ProviderChange], trees: Mapping[str, Tree] | None = None
    ) -> None:
        """Take in one commit. `trees` holds the trees that were reshaped, as they are after it."""
        if self.knows(number):
            return
        trees = trees or {}
        for tree in trees.values():
            self.put(tree, number)
        for change in changes:
            if change.root not in trees:
                self.use(change, number)
        self._ahead.add(number)
        while self.seen + 1 in self._ahead:
            self.seen += 1
            self._ahead.remove(self.seen)
        if self._early:
            self._early = {one: known for one, known in self._early.items() if known[1] > self.seen}

    def use(self, change: ProviderChange, number: int) -> None:
        """This provider's usage is now that."""
        row = self.rows.get(change.provider)
        if row is None:
            known = self._early.get(change.provider)
            if number > self.seen and (known is None or known[1] < number):
                self._early[change.provider] = change, number
            return
        if row.number >= number:
            return
        row.number = number
        row.generation = change.generation
        self._set_free(row, change.used)

    def put(self, tree: Tree, number: int) -> None:
        """This tree is now that: rows are made, changed and dropped."""
        if number < self._put_at.get(tree.root, 0):
            return
        self._put_at[tree.root] = number
        here = tuple(provider.uuid for provider in tree.providers)
        for uuid in self.trees.pop(tree.root, ()):
            row = self.rows.get(uuid)
            if uuid not in here and row is not None and row.root == tree.root:
                self._drop(row)
        if here:
            self.trees[tree.root] = here
        for provider in tree.providers:
            self._put(tree, provider, number)

    def _put(self, tree: Tree, provider: ProviderState, number: int) -> None:
        row = self.rows.get(provider.uuid)
        used: Mapping[str, int] = provider.used
        generation = provider.generation
        if row is None:
            position = self._new_position()
        else:
            position = row.position
            if row.number > number:  # it has heard of later claims
                used, generation, number = row.used, row.generation, row.number
            self._clear(row)
        inventories = self._same(provider.inventories)
        capacity = {name: min(inventory.capacity, BEYOND_COUNTING) for name, inventory in inventories.items()}
        traits = self._same(provider.traits)
        fresh = Row(
            position=position,
            uuid=provider.uuid,
            parent=provider.parent,
            root=tree.root,
            host=tree.host or provider.name,
            cell=self._same(tree.cell),
            agent=self._same(tree.agent),
            zone=self._same(tree.zone),
            generation=generation,
            shapes={provider.uuid: provider.shape},
            inventories=inventories,
            capacity=self._same(capacity),
            used=used,
            free=capacity,
            traits=traits,
            aggregates=self._same(provider.aggregates),
            number=number,
            size=_size(tree, provider, capacity),
        )
        self.rows[provider.uuid] = fresh
        self.at[position] = fresh
        self._mark(fresh)
        self._set_free(fresh, used)
        if provider.uuid in self._early:
            self.use(*self._early[provider.uuid])

    def _mark(self, row: Row) -> None:
        position = row.position
        self.roots[position] = row.parent is None
        self._flags(self.cells, row.cell)[position] = True
        for trait in row.traits:
            self._flags(self.traits, trait)[position] = True
        for aggregate in row.aggregates:
            self._flags(self.aggregates, aggregate)[position] = True
        for name, inventory in row.inventories.items():
            kind = self.classes.get(name)
            if kind is None:
                ones = np.ones(len(self.at), np.int64)
                kind = self.classes[name] = Class(np.zeros(len(self.at), np.int64), ones, ones.copy())
            kind.least[position] = inventory.min_unit
            kind.step[position] = inventory.step_size
            kind.picky += inventory.min_unit > 1 or inventory.step_size > 1

    def _clear(self, row: Row) -> None:
        """Take back all that was marked."""
        position = row.position
        self.roots[position] = False
        self.cells[row.cell][position] = False
        for trait in row.traits:
            self.traits[trait][position] = False
        for aggregate in row.aggregates:
            self.aggregates[aggregate][position] = False
        for name, inventory in row.inventories.items():
            kind = self.classes[name]
            kind.top[position] = 0
            kind.least[position] = kind.step[position] = 1
            kind.picky -= inventory.min_unit > 1 or inventory.step_size > 1

    def _set_free(self, row: Row, used: Mapping[str, int]) -> None:
        position = row.position
        free = {}
        for name, capacity in row.capacity.items():
            free[name] = left = capacity - used.get(name, 0)
            most = row.inventories[name].max_unit
            self.classes[name].top[position] = most if most < left else left if left > 0 else 0
        row.used, row.free = used, free

    def _drop(self, row: Row) -> None:
        del self.rows[row.uuid]
        self._clear(row)
        self.at[row.position] = None
        self._free_rows.append(row.position)

    def _new_position(self) -> int:
        if self._free_rows:
            return self._free_rows.pop()
        if self.high == len(self.at):
            self._grow()
        self.high += 1
        return self.high - 1

    def _grow(self) -> None:
        more = len(self.at)
        self.at.extend([None] * more)
        for flags in (self.cells, self.traits, self.aggregates):
            for name, values in flags.items():
                flags[name] = np.concatenate([values, np.zeros(more, np.bool_)])
        self.roots = np.concatenate([self.roots, np.zeros(more, np.bool_)])
        for kind in self.classes.values():
            kind.top = np.concatenate([kind.top, np.zeros(more, np.int64)])
            kind.least = np.concatenate([kind.least, np.ones(more, np.int64)])
            kind.step = np.concatenate([kind.step, np.ones(more, np.int64)])

    def _flags(self, kind: dict[str, Bools], name: str) -> Bools:
        flags = kind.get(name)
        if flags is None:
            flags = kind[name] = np.zeros(len(self.at), np.bool_)
        return flags

    def _same(self, value: Any) -> Any:
        """One copy of what a hundred thousand hosts have alike."""
        if len(self._interned) > INTERNED:
            self._interned.clear()
        key = (type(value), tuple(value.items()) if isinstance(value, dict) else value)
        return self._interned.setdefault(key, value)


def _size(tree: Tree, provider: ProviderState, capacity: Mapping[str, int]) -> int:
    """About how many bytes it takes in an answer; what is free is about as long as what there is."""
    words = (tree.host or provider.name, tree.cell, tree.agent, tree.zone, provider.traits)
    return BESIDE + len(_encode(words)) + 2 * len(_encode(capacity))
