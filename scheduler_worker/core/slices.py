"""Divides the hosts among several schedulers: each prefers its slice, so concurrent claims rarely conflict.

Rendezvous hashing: a host is preferred by the scheduler with the highest hash of both names. All schedulers
agree without messages, and if one starts or stops, only its slice changes.
"""

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

_ALL_BITS = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def slice_of(hashes: Hashes, schedulers: Sequence[str], own: str) -> Bools | None:
    """Return the mask of this scheduler's hosts, or None if it is the only scheduler."""
    others = [name for name in schedulers if name != own]
    if not others:
        return None
    ours = _weights(hashes, own)
    mine = np.ones(len(hashes), np.bool_)
    for name in others:
        theirs = _weights(hashes, name)
        mine &= (ours > theirs) | ((ours == theirs) & (own < name))
    return mine


def _weights(hashes: Hashes, name: str) -> Hashes:
    """Return the combined hashes, mixed so that every bit of both has an effect."""
    mixed = hashes ^ np.uint64((crc32(name.encode()) + 1) * _GOLDEN & _ALL_BITS)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    weights: Hashes = mixed ^ (mixed >> np.uint64(31))
    return weights
