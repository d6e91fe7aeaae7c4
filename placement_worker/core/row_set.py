"""A set of rows: few rows as a Python set, many as an array of bools."""

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

FEW = 512  # share of the rows below which a Python set is smaller than an array


class RowSet:
    """A set of rows that soon is an array: most traits are everybody's, most aggregates a rack's."""

    __slots__ = ("_few", "_many", "count")

    def __init__(self) -> None:
        self.count = 0
        self._few: set[int] = set()  # until it is an array
        self._many: Bools | None = None

    def add(self, row: int, size: int) -> None:
        """Add a missing row. `size` is the number of rows that may exist."""
        self.count += 1
        if self._many is not None:
            self._many[row] = True
        else:
            self._few.add(row)
            if self.count * FEW > size:
                self._many, self._few = self.mask(size), set()

    def discard(self, row: int) -> None:
        """Remove a present row."""
        self.count -= 1
        if self._many is not None:
            self._many[row] = False
        else:
            self._few.discard(row)

    def grow(self, size: int) -> None:
        """Make space for rows up to this number."""
        if self._many is None:
            return
        if self.count * FEW > size:
            self._many = np.concatenate([self._many, np.zeros(size - len(self._many), np.bool_)])
        else:
            self._few, self._many = set(np.flatnonzero(self._many).tolist()), None

    def rows(self) -> Ints:
        if self._many is not None:
            return np.flatnonzero(self._many)
        return np.fromiter(self._few, np.intp, len(self._few))

    def mask(self, high: int) -> Bools:
        """Return the mask of the rows below `high`. Do not write to it."""
        if self._many is not None:
            return self._many[:high]
        mask = np.zeros(high, np.bool_)
        if self._few:
            mask[list(self._few)] = True
        return mask
