"""The one model of hosts that fill up: what is free after choices that placement has not claimed.

A scheduler that chooses hosts for a batch, and features that search or plan, try choices before they claim.
They all use this model:

    packing.claim(...)                     # a choice takes capacity
    packing.release(...)                   # it gives the capacity back
    with packing.trying() as trial:
        trial.claim(...)                   # undone at the end of the block
        trial.undo()                       # or earlier

`ProviderPacking` has amounts by provider, as allocations name them: for the tentative choices of a scheduler,
and for plans that compute with the trees of hosts. `RowPacking` has them as arrays, for planners that compare
all hosts at once. A row is one provider, or a whole host if the planner computes with the sums of its tree.

Amounts are whole numbers, so undoing restores each number exactly.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Generic, TypeVarTuple

import numpy as np
import numpy.typing as npt

from bus.vocabulary import Allocations

Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating[Any]]
Amounts = npt.NDArray[Any]  # whole numbers: floats, which are exact to 2⁵³, or integers
Change = TypeVarTuple("Change")  # what is claimed: allocations, or rows and amounts

NOTHING: Mapping[str, int] = {}


class BasePacking(Generic[*Change]):
    """The amounts that choices take. Subclasses store them."""

    def __init__(self) -> None:
        self.changes = 0  # grows with every change

    def claim(self, *change: *Change) -> None:
        """Count amounts as used, in memory only."""
        self.changes += 1
        self._apply(1, *change)

    def release(self, *change: *Change) -> None:
        """Count amounts as free again."""
        self.changes += 1
        self._apply(-1, *change)

    def _apply(self, sign: int, *change: *Change) -> None:
        """Claim amounts if `sign` is 1, release them if it is -1."""
        raise NotImplementedError

    @contextmanager
    def trying(self) -> "Iterator[PackingTrial[*Change]]":
        """Yield a trial, and undo its changes at the end of the `with` block. The block must not await if
        other tasks use this packing.
        """
        trial = PackingTrial(self)
        try:
            yield trial
        finally:
            trial.undo()


class PackingTrial(Generic[*Change]):
    """Claims and releases that can be undone. Changes that others make meanwhile remain."""

    def __init__(self, packing: BasePacking[*Change]) -> None:
        self._packing = packing
        self._done: list[tuple[int, tuple[*Change]]] = []

    def claim(self, *change: *Change) -> None:
        """Count amounts as used, until the trial is undone."""
        self._packing.claim(*change)
        self._done.append((1, change))

    def release(self, *change: *Change) -> None:
        """Count amounts as free, until the trial is undone."""
        self._packing.release(*change)
        self._done.append((-1, change))

    def mark(self) -> int:
        """Return the present state, for `undo`."""
        return len(self._done)

    def undo(self, mark: int = 0) -> None:
        """Undo all changes of this trial after a mark, the newest first."""
        while len(self._done) > mark:
            sign, change = self._done.pop()
            if sign > 0:
                self._packing.release(*change)
            else:
                self._packing.claim(*change)


class ProviderPacking(BasePacking[Allocations]):
    """The amounts that choices take of each provider, beyond what is used already."""

    def __init__(self, free: Mapping[str, Mapping[str, int]] | None = None) -> None:
        super().__init__()
        self._free = free or {}  # provider → free amounts without the choices
        # provider → amounts taken, without zeros; negative: released
        self.taken: dict[str, dict[str, int]] = {}
        self.negative: set[tuple[str, str]] = set()  # providers and classes with a negative amount

    def free(self, provider: str) -> Mapping[str, int]:
        """Return what a provider has free by class, less the amounts claimed here."""
        free, taken = self._free.get(provider, NOTHING), self.taken.get(provider)
        return {name: left - taken.get(name, 0) for name, left in free.items()} if taken else free

    def fits(self, provider: str, amounts: Iterable[tuple[str, int]]) -> bool:
        """Return whether a provider has all amounts free, less those claimed here."""
        free, taken = self._free.get(provider, NOTHING), self.taken.get(provider, NOTHING)
        return all(free.get(name, 0) - taken.get(name, 0) >= amount for name, amount in amounts)

    @contextmanager
    def releasing(self, *allocations: Allocations) -> Iterator[None]:
        """Count these amounts as free while the `with` block runs. Choices of the block remain after it."""
        with self.trying() as trial:
            for each in filter(None, allocations):
                trial.release(each)
            yield

    def _apply(self, sign: int, allocations: Allocations) -> None:
        taken_of, negative = self.taken, self.negative
        for provider, resources in allocations.items():
            taken = taken_of.get(provider)
            if taken is None:
                taken = taken_of[provider] = {}
            for name, amount in resources.items():
                before = taken.get(name, 0)
                after = before + sign * amount
                if after:
                    taken[name] = after
                elif before:
                    del taken[name]
                if after < 0:
                    negative.add((provider, name))
                elif before < 0:
                    negative.discard((provider, name))
            if not taken:
                del taken_of[provider]


Rows = Any  # what selects rows of an array: a row's number, a slice, or an array of distinct numbers
ALL: Rows = slice(None)


class RowPacking(BasePacking[Rows, Amounts]):
    """The free amounts and capacities of many hosts or providers: a row for each, a column for each resource
    class. The amounts of an instance are a vector. A class of which it asks nothing never prevents that it
    fits.
    """

    def __init__(self, classes: Sequence[str], free: Amounts, whole: Amounts) -> None:
        super().__init__()
        self.classes = tuple(classes)
        self.free = free
        self.whole = whole  # capacities; they do not change

    def copy(self) -> "RowPacking":
        """Return a copy in which claims do not affect this packing."""
        return RowPacking(self.classes, self.free.copy(), self.whole)

    def __len__(self) -> int:
        return len(self.free)

    def vector(self, amounts: Mapping[str, int]) -> Floats:
        """Return amounts as an array in the order of `classes`; other classes are left out."""
        return np.array([float(amounts.get(name, 0)) for name in self.classes])

    @cached_property
    def scale(self) -> Floats:
        """Return the largest capacity of each class: the unit in which amounts of several classes are
        added.
        """
        scale: Floats = np.maximum(self.whole.max(axis=0, initial=0.0), 1.0)
        return scale

    def size(self, amounts: Amounts) -> float:
        """Return one number for amounts: the sum of their shares of the scale of each class."""
        return float((amounts / self.scale).sum())

    def fits(self, amounts: Amounts, rows: Rows = ALL) -> Bools:
        """Return for each row whether the amounts are free."""
        return are_free(amounts, self.free[rows])

    def fits_empty(self, amounts: Amounts) -> Bools:
        """Return for each row whether the amounts would be free if nothing were used."""
        return are_free(amounts, self.whole)

    def left(self, amounts: Amounts, rows: Rows = ALL) -> Floats:
        """Return for each row the size of what is free in addition to the amounts."""
        left: Floats = ((self.free[rows] - amounts) / self.scale).sum(axis=-1)
        return left

    def lacks(self, amounts: Amounts, rows: Rows = ALL) -> Floats:
        """Return for each row how much of each class is missing for the amounts."""
        lacks: Floats = np.where(amounts > 0, np.maximum(amounts - self.free[rows], 0.0), 0.0)
        return lacks

    def distances(self, amounts: Amounts) -> Floats:
        """Return for each row the size of what is missing for the amounts; 0: they fit."""
        found: Floats = np.zeros(len(self.free))
        for column in np.flatnonzero(amounts).tolist():
            found += np.maximum(amounts[column] - self.free[:, column], 0.0) / self.scale[column]
        return found

    def _apply(self, sign: int, rows: Rows, amounts: Amounts) -> None:
        if sign > 0:
            self.free[rows] -= amounts
        else:
            self.free[rows] += amounts


def are_free(amounts: Amounts, free: Amounts) -> Bools:
    """Return whether the `free` amounts include the amounts of an instance; for each row of `free`, if it has
    several.
    """
    found: Bools = ((free >= amounts) | (amounts == 0)).all(axis=-1)
    return found


def instances_in(amounts: Amounts, free: Amounts) -> Floats:
    """Return how many instances of these amounts fit into the `free` amounts; for each row of `free`, if it
    has several. Without any amount, the number is infinite.
    """
    asked = amounts > 0
    found: Floats = np.floor(free[..., asked] / amounts[asked]).min(axis=-1, initial=np.inf)
    return np.maximum(found, 0.0)
