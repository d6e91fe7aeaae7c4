"""Reserved hosts: the first waiting request of each class reserves the host that is nearest to its needs.

Later requests may use every other host, so they cannot delay the first one. A request reserves only hosts
that it could ever use.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bus.candidates import Bools, Floats, Ints
from bus.vocabulary import Id

Root = str
LineKey = tuple[int, float, str]  # position of a waiting request: the lowest is first
Reserved = Mapping[Root, LineKey]

MOST_LINES = 64  # classes whose first requests may reserve hosts
MOST_ASKED = 64  # hosts a rule is asked about before one is kept without


@dataclass(frozen=True, slots=True, eq=False)
class Prospect:
    """The hosts that could ever take one of a kind, were they empty."""

    size: int  # positions are below this
    positions: Ints
    lacks: Floats  # how far each is from having room now; 0: it has
    capacities: Floats  # how many could be there at most
    root: Callable[[int], Root]  # of a position
    admits: Callable[[int], bool]  # whether no filter rejects the host permanently


@dataclass(frozen=True, slots=True)
class FirstInLine:
    kind: str
    key: LineKey
    request: Id
    needs: int


@dataclass(frozen=True, slots=True)
class HostReservation:
    """A host is kept for this one."""

    key: LineKey
    kind: str


def reservations(
    firsts: Sequence[FirstInLine], prospect: Callable[[str], Prospect], before: Collection[Root]
) -> dict[Root, HostReservation]:
    """Return the hosts that each first request reserves, in order of the requests. Previous reservations are
    kept if possible.
    """
    kept: dict[Root, HostReservation] = {}
    covered: Bools = np.zeros(0, np.bool_)
    for first in firsts[:MOST_LINES]:
        seen = prospect(first.kind)
        if len(covered) < seen.size:
            covered = np.concatenate([covered, np.zeros(seen.size - len(covered), np.bool_)])
        left = np.flatnonzero(~covered[seen.positions])
        covered[seen.positions] = True
        for root in _nearest(seen, left, first.needs, before):
            kept[root] = HostReservation(first.key, first.kind)
    return kept


def _nearest(seen: Prospect, left: Ints, needs: int, before: Collection[Root]) -> list[Root]:
    """Return enough of the hosts that all instances could be placed on them."""
    if not len(left):
        return []
    far = seen.lacks[left]
    if before:
        stays = [seen.root(int(position)) in before for position in seen.positions[left]]
        far = np.where(stays, -1.0, far)
    found: list[Root] = []
    room = 0.0
    for at in left[np.argsort(far, kind="stable")[: MOST_ASKED + needs]]:
        if room >= needs:
            break
        position = int(seen.positions[at])
        if seen.admits(position):
            found.append(seen.root(position))
            room += max(float(seen.capacities[at]), 1.0)
    return found
