"""Rows of the index (one for each provider), sets of rows, arrays of one resource class, and
tentative choices.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bus.domains import NO_LABELS, HostLabels
from bus.queries import Candidate
from bus.reports import Inventory
from bus.requests import ResourceGroup

BEYOND_COUNTING = 2**62  # larger sums count as this, so that int64 does not overflow
_NOTHING: dict[str, Any] = {}  # an empty dict for many rows; never change it


@dataclass(slots=True, eq=False)
class Row:
    """A provider's row in the index. A dict of a row is replaced, never changed, because candidates refer to
    it.

    There may be 100,000 rows, so equal values are shared, and rarely used values are computed on demand.
    """

    position: int
    uuid: str
    parent: str | None
    root: str
    host: str
    cell: str
    agent: str
    zone: str
    generation: int
    shape: int
    inventories: dict[str, Inventory]
    capacity: dict[str, int]
    traits: tuple[str, ...]
    aggregates: tuple[str, ...]
    number: int  # last change number that the row includes
    shaped: int  # last change number that changed more than the usage
    amounts: tuple[int, ...] | Mapping[str, int]  # used amounts; a tuple has the order of `capacity`
    summary: Any = None  # a cache for the HTTP API, which every change resets
    known_free: dict[str, int] | None = None
    excluded: bool = False  # must not be claimed, because of the use of a sibling with EXCLUDES_SIBLINGS
    labels: HostLabels = NO_LABELS  # for a root: labels by source
    domains: Mapping[str, str] = field(default_factory=dict)  # for a root: level → label that applies

    @property
    def shapes(self) -> dict[str, int]:
        """Return the shape of the provider as a claim names it."""
        return {self.uuid: self.shape}

    @property
    def used(self) -> Mapping[str, int]:
        """Return the used amounts by class."""
        amounts = self.amounts
        return dict(zip(self.capacity, amounts, strict=True)) if isinstance(amounts, tuple) else amounts

    @property
    def in_use(self) -> bool:
        amounts = self.amounts
        return any(amounts if isinstance(amounts, tuple) else amounts.values())

    @property
    def free(self) -> dict[str, int]:
        """Return the free amounts by class; all are 0 while a sibling that excludes this
        provider is in use.
        """
        if (free := self.known_free) is None:
            amounts, capacity = self.amounts, self.capacity
            if self.excluded:
                free = dict.fromkeys(capacity, 0)
            elif isinstance(amounts, tuple):
                free = {name: capacity[name] - used for name, used in zip(capacity, amounts, strict=True)}
            else:
                free = {name: most - amounts.get(name, 0) for name, most in capacity.items()}
            self.known_free = free
        return free


def lone_candidate(row: Row, group: ResourceGroup, free: dict[str, int] | None = None) -> Candidate:
    """Return the candidate of a host that is one provider."""
    return Candidate(
        row.uuid,
        row.host,
        row.cell,
        row.agent,
        row.zone,
        {row.uuid: group.resources},
        {row.uuid: row.shape},
        (row.known_free or row.free) if free is None else free,  # `known_free` is a cache of `free`
        row.capacity,
        row.traits,
        {group.suffix: (row.uuid,)} if group.suffix else _NOTHING,
        _NOTHING,
        row.aggregates,
    )


def sums(rows: list[Row]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the free and the total amounts of a provider tree, each by resource class; `rows` are the index
    rows of all its providers. In a tree of several providers, an overcommitted provider counts as 0.
    """
    if len(rows) == 1:
        return rows[0].free, rows[0].capacity
    free: dict[str, int] = {}
    capacity: dict[str, int] = {}
    for row in rows:
        for name, amount in row.capacity.items():
            free[name] = min(free.get(name, 0) + max(row.free[name], 0), BEYOND_COUNTING)
            capacity[name] = min(capacity.get(name, 0) + amount, BEYOND_COUNTING)
    return free, capacity


Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

FEW = 512  # up to one row in so many, a Python set is smaller than an array


class RowSet:
    """A set of rows of the index, such as all with a trait: a Python set if small, else a boolean array."""

    __slots__ = ("_few", "_many", "count")

    def __init__(self) -> None:
        self.count = 0
        self._few: set[int] = set()  # the rows, as long as they are few
        self._many: Bools | None = None

    def add(self, row: int, size: int) -> None:
        """Add a row; `size` is the number of all rows, which decides between a set and a mask."""
        self.count += 1
        if self._many is not None:
            self._many[row] = True
        else:
            self._few.add(row)
            if self.count * FEW > size:
                self._many, self._few = self.mask(size), set()

    def discard(self, row: int) -> None:
        self.count -= 1
        if self._many is not None:
            self._many[row] = False
        else:
            self._few.discard(row)

    def grow(self, size: int) -> None:
        """Adapt the mask to a larger number of rows, or return to a set if few rows are in it."""
        if self._many is None:
            return
        if self.count * FEW > size:
            self._many = np.concatenate([self._many, np.zeros(size - len(self._many), np.bool_)])
        else:
            self._few, self._many = set(np.flatnonzero(self._many).tolist()), None

    def rows(self) -> Ints:
        """Return the rows as an array."""
        if self._many is not None:
            return np.flatnonzero(self._many)
        return np.fromiter(self._few, np.intp, len(self._few))

    def mask(self, high: int) -> Bools:
        """Return an array: for each index row below `high`, whether it is in the set. Do not write to it."""
        if self._many is not None:
            return self._many[:high]
        mask = np.zeros(high, np.bool_)
        if self._few:
            mask[list(self._few)] = True
        return mask


Amounts = npt.NDArray[np.int32]  # amounts of one claim, which are at most 2³¹ − 1
Sums = npt.NDArray[np.float64]  # capacities and free amounts, which may be larger: floats are exact to 2⁵³


class ClassArrays:
    """The amounts of one resource class, as arrays with an element for each row of the index. `picky` counts
    providers with a min_unit or step_size other than 1, `capped` providers with a max_unit.
    """

    __slots__ = ("capped", "least", "left", "picky", "providers", "step", "there", "top", "whole")

    def __init__(self, size: int) -> None:
        self.top: Amounts = np.zeros(size, np.int32)  # maximum amount of one claim now: free, up to max_unit
        self.there: Bools = np.zeros(size, np.bool_)  # rows with an inventory of the class
        self.left: Sums = np.zeros(size)  # the free amount; negative if overcommitted
        self.whole: Sums = np.zeros(size)  # the capacity
        self.least: Amounts | None = None  # min_unit, if it is not 1 at every provider
        self.step: Amounts | None = None
        self.providers = 0
        self.picky = 0
        self.capped = 0

    def mark(self, position: int, inventory: Inventory, capacity: int) -> None:
        """Enter the inventory of the provider at this position."""
        self.there[position] = True
        self.providers += 1
        self.whole[position] = capacity
        self.capped += inventory.max_unit < capacity
        if inventory.min_unit > 1 or inventory.step_size > 1:
            if self.least is None or self.step is None:
                self.least, self.step = np.ones(len(self.top), np.int32), np.ones(len(self.top), np.int32)
            self.picky += 1
            self.least[position] = inventory.min_unit
            self.step[position] = inventory.step_size

    def clear(self, position: int, inventory: Inventory, capacity: int) -> None:
        """Remove the inventory of the provider at this position."""
        self.top[position] = 0
        self.left[position] = self.whole[position] = 0.0
        self.there[position] = False
        self.providers -= 1
        self.capped -= inventory.max_unit < capacity
        if self.least is not None and self.step is not None:
            self.least[position] = self.step[position] = 1
            self.picky -= inventory.min_unit > 1 or inventory.step_size > 1

    def grow(self, more: int) -> None:
        """Add this many positions."""
        none, minima = np.zeros(more), np.ones(more, np.int32)
        self.top = np.concatenate([self.top, np.zeros(more, np.int32)])
        self.there = np.concatenate([self.there, np.zeros(more, np.bool_)])
        self.left = np.concatenate([self.left, none])
        self.whole = np.concatenate([self.whole, none])
        if self.least is not None and self.step is not None:
            self.least = np.concatenate([self.least, minima])
            self.step = np.concatenate([self.step, minima])
