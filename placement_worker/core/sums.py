"""What trees have of a class in all, as arrays: at each root what is free there, or what there is."""

import numpy as np

from placement_worker.core.class_arrays import Sums
from placement_worker.core.index import BEYOND_COUNTING, Index
from placement_worker.core.row_set import Ints
from placement_worker.core.snapshot import Snapshot


def free_of_trees(trees: Snapshot, name: str) -> Sums:
    """For all rows; only those of roots mean anything. To be read only, as long as nothing changes.

    Where a tree is several providers, what one of them lacks lessens nothing: below zero counts as nothing.
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
    """The same of what there is."""
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
