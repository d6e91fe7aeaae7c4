"""Whom of equals a request meets first: a shuffle that anybody can repeat from the seed and the root."""

from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

Uints = npt.NDArray[np.unsignedinteger[Any]]

_WORD = 2**64 - 1
_DROPPED = 11  # bits: what is left is exact as a float, too


def mixed(root: str) -> int:
    """A host's own number, as if it were drawn."""
    return int.from_bytes(blake2b(root.encode(), digest_size=8).digest())


@lru_cache(maxsize=64)  # of one seed it is asked again and again
def factor(seed: str) -> int:
    """What a seed multiplies these numbers with: odd, so that no two become one."""
    return mixed(seed) | 1


def tie(seed: str, root: str) -> int:
    """Least first."""
    return (mixed(root) * factor(seed) & _WORD) >> _DROPPED


def ties(seed: str, mixed_roots: Uints) -> Uints:
    """The same for many."""
    return (mixed_roots * np.uint64(factor(seed))) >> np.uint64(_DROPPED)


def drawn(seed: str, build: str, among: int) -> int:
    """Which of so many a build gets: the same one whenever it is asked."""
    return mixed(f"{seed} {build}") % among if among > 1 else 0
