"""The order of hosts with equal scores: a shuffle that can be repeated from the seed and the root."""

from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

Uints = npt.NDArray[np.unsignedinteger[Any]]

_WORD = 2**64 - 1
_DROPPED = 11  # bits: what is left is exact as a float, too


def mixed(root: str) -> int:
    """Return a number of the host that looks random."""
    return int.from_bytes(blake2b(root.encode(), digest_size=8).digest())


@lru_cache(maxsize=64)  # of one seed it is asked again and again
def factor(seed: str) -> int:
    """Return the odd factor of a seed; an odd factor maps different numbers to different ones."""
    return mixed(seed) | 1


def tie(seed: str, root: str) -> int:
    """Return the tie of a host; the lowest comes first."""
    return (mixed(root) * factor(seed) & _WORD) >> _DROPPED


def ties(seed: str, mixed_roots: Uints) -> Uints:
    """Return the tie numbers of many roots."""
    return (mixed_roots * np.uint64(factor(seed))) >> np.uint64(_DROPPED)


def drawn(seed: str, build: str, among: int) -> int:
    """Return the index drawn for a build: always the same one for the same seed."""
    return mixed(f"{seed} {build}") % among if among > 1 else 0
