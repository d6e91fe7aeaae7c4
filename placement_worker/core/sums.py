"""Sums of a class over each tree, as arrays: the free or the total amount at each root."""

import numpy as np

from placement_worker.core.class_arrays import Sums
from placement_worker.core.index import BEYOND_COUNTING, Index
from placement_worker.core.row_set import Ints
from placement_worker.core.snapshot import Snapshot


def free_of_trees(trees: Snapshot, name: str) -> Sums:
    """Return the free amounts; only the values at roots are meaningful. Do not write to it, and use it only
    until the next change.

    In a tree of several providers an overcommitted one counts as 0.
    """
    index = trees.index
    kind = index.classes.get(name)
    if kind is None:
        return np.zeros(index.high)
    left = trees.left(name)[: index.high]
    if not index.children:
        return left
    high = index.high
    several = np.zeros(high, np.bool_)
    several[index.root_of[np.flatnonzero(index.below[:high])]] = True
    rows = np.flatnonzero(kind.there[:high])
    roots, given = index.root_of[rows], left[rows]
    return _summed(roots, np.where(several[roots], np.maximum(given, 0), given), high)


def capacity_of_trees(index: Index, name: str) -> Sums:
    """Return the total amounts; only the values at roots are meaningful."""
    kind = index.classes.get(name)
    if kind is None:
        return np.zeros(index.high)
    if not index.children:
        return kind.whole[: index.high]
    rows = np.flatnonzero(kind.there[: index.high])
    return _summed(index.root_of[rows], kind.whole[rows], index.high)


def _summed(roots: Ints, given: Sums, high: int) -> Sums:
    total = np.bincount(roots, weights=given, minlength=high)
    return np.minimum(total, float(BEYOND_COUNTING))
