"""Hashes of hosts: they decide between hosts with equal scores, and give each scheduler a share of
the hosts.

Rendezvous hashing of schedulers and hosts gives each scheduler a share that it prefers: if a scheduler
starts or stops, only its share changes.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from bus.candidates import Bools

Uints = npt.NDArray[np.unsignedinteger[Any]]
Hashes = npt.NDArray[np.uint64]

_WORD = 2**64 - 1
_DROPPED = 11  # number of hash bits dropped, so that a float represents the rest exactly
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(root: str) -> int:
    """Return a hash of a text, such as the root id of a host."""
    return int.from_bytes(blake2b(root.encode(), digest_size=8).digest())


@lru_cache(maxsize=64)  # callers pass the same seed many times
def factor(seed: str) -> int:
    """Derive an odd number from a seed: multiplied by it, distinct 64-bit hashes stay distinct."""
    return mixed(seed) | 1


def tie(seed: str, root: str) -> int:
    """Return the number that orders a host among equally good ones; each seed gives another order."""
    return (mixed(root) * factor(seed) & _WORD) >> _DROPPED


def ties(seed: str, mixed_roots: Uints) -> Uints:
    """Return `tie` of many hosts."""
    return (mixed_roots * np.uint64(factor(seed))) >> np.uint64(_DROPPED)


def drawn(seed: str, build: str, among: int) -> int:
    """Choose one of the `among` best hosts for a build; return the host's index, derived from seed and build
    id.
    """
    return mixed(f"{seed} {build}") % among if among > 1 else 0


def slice_of(hashes: Hashes, schedulers: Sequence[str], scheduler: str) -> Bools | None:
    """Return a mask of the hosts that this scheduler prefers, or None if no other scheduler runs."""
    other_schedulers = [name for name in schedulers if name != scheduler]
    if not other_schedulers:
        return None
    ours = _weights(hashes, scheduler)
    mine = np.ones(len(hashes), np.bool_)
    for name in other_schedulers:
        theirs = _weights(hashes, name)
        mine &= (ours > theirs) | ((ours == theirs) & (scheduler < name))
    return mine


def _weights(hashes: Hashes, name: str) -> Hashes:
    """Return a pseudo-random number of a scheduler for each host: the highest one has the host."""
    mixed = hashes ^ np.uint64((crc32(name.encode()) + 1) * _GOLDEN & _WORD)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    weights: Hashes = mixed ^ (mixed >> np.uint64(31))
    return weights
