"""One resource class over all providers, in arrays that go with the index's rows."""

import numpy as np
import numpy.typing as npt

from bus.reports import Inventory
from placement_worker.core.row_set import Bools

Amounts = npt.NDArray[np.int32]  # no amount is larger than 2³¹ − 1
Sums = npt.NDArray[np.float64]  # capacities and what is left of them may be: as floats they are exact to 2⁵³


class ClassArrays:
    """The amounts of one resource class as arrays over the index's rows.

    `providers` counts the providers with the class, `picky` the providers with a min_unit or step_size other
    than 1, `capped` the providers with a max_unit.
    """

    __slots__ = ("capped", "least", "left", "picky", "providers", "step", "there", "top", "whole")

    def __init__(self, size: int) -> None:
        self.top: Amounts = np.zeros(size, np.int32)  # the most one claim could take: free, within max_unit
        self.there: Bools = np.zeros(size, np.bool_)  # rows with the class, free or not
        self.left: Sums = np.zeros(size)  # what is free; below zero where more is used than there is
        self.whole: Sums = np.zeros(size)  # the capacity
        self.least: Amounts | None = None  # min_unit, if any provider has another than 1
        self.step: Amounts | None = None
        self.providers = 0
        self.picky = 0
        self.capped = 0

    def mark(self, position: int, inventory: Inventory, capacity: int) -> None:
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
        """Undo `mark` for this inventory."""
        self.top[position] = 0
        self.left[position] = self.whole[position] = 0.0
        self.there[position] = False
        self.providers -= 1
        self.capped -= inventory.max_unit < capacity
        if self.least is not None and self.step is not None:
            self.least[position] = self.step[position] = 1
            self.picky -= inventory.min_unit > 1 or inventory.step_size > 1

    def grow(self, more: int) -> None:
        none, ones = np.zeros(more), np.ones(more, np.int32)
        self.top = np.concatenate([self.top, np.zeros(more, np.int32)])
        self.there = np.concatenate([self.there, np.zeros(more, np.bool_)])
        self.left = np.concatenate([self.left, none])
        self.whole = np.concatenate([self.whole, none])
        if self.least is not None and self.step is not None:
            self.least = np.concatenate([self.least, ones])
            self.step = np.concatenate([self.step, ones])
