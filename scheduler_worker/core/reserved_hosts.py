"""Reserves hosts for the first waiting request of each equivalence class, so that later requests of other
classes cannot delay it.

The first request reserves, of the hosts that it could ever use, the host that is nearest to fitting. Later
requests may use every other host.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

import numpy as np

from bus.candidates import Bools, Floats, Ints
from scheduler_worker.core.waiting_shares import QueueKey, Rank

Root = str
Roots = Collection[Root]

MOST_QUEUES = 64  # equivalence classes whose first request may reserve hosts
MOST_ASKED = 64  # hosts on which filters are evaluated to find one to reserve


@dataclass(frozen=True, slots=True, eq=False)
class Prospect:
    """The hosts that would fit a request of an equivalence class if empty, and what they lack now."""

    size: int  # number of positions in placement's index
    positions: Ints
    lacks: Floats  # by host: what it lacks now, as a sum of fractions; 0: it fits
    capacities: Floats  # by host: most instances that fit if it is empty
    root: Callable[[int], Root]  # returns the root of the host at a position
    admits: Callable[[int], bool]  # returns whether no filter permanently rejects the host at a position


@dataclass(frozen=True, slots=True)
class HostReservation:
    """A host reserved for the first waiting request of an equivalence class."""

    rank: Rank
    kind: str

    @property
    def key(self) -> QueueKey:
        return self.rank.key


class ReservingQueue(Protocol):
    """The queue of an equivalence class, as far as reserving hosts needs it."""

    kind: str
    base: str
    needs: int


class ReservedHosts:
    """The hosts reserved for waiting requests of this scheduler, and of the other schedulers."""

    def __init__(self) -> None:
        self.own: dict[Root, HostReservation] = {}
        self.elsewhere: dict[Root, QueueKey] = {}

    def renew(
        self, queues: Sequence[tuple[Rank, ReservingQueue]], prospect: Callable[[str], Prospect]
    ) -> list[Root]:
        """Reserve hosts for the first request of each class, given with its rank. Return the hosts whose
        reservation has ended or is another: requests that could not use them before may use them now.
        """
        before, self.own = self.own, _reservations(sorted(queues, key=itemgetter(0)), prospect, self.own)
        return [root for root, old in before.items() if self.own.get(root) != old]

    def set_elsewhere(self, reserved: Mapping[Root, QueueKey]) -> list[Root]:
        """Set the hosts that other schedulers have reserved. Return the hosts that requests may use now,
        although they could not before.
        """
        before, self.elsewhere = self.elsewhere, dict(reserved)
        return [root for root, key in before.items() if root not in reserved or reserved[root] > key]

    def before(self, rank: Rank, kind: str) -> set[Root]:
        """Return the hosts reserved for requests of other classes, and of other schedulers, before `rank`."""
        key = rank.key  # turns at different schedulers are not comparable: between schedulers, age decides
        roots = {root for root, first in self.elsewhere.items() if first < key}
        roots.update(root for root, own in self.own.items() if own.kind != kind and own.rank.precedes(rank))
        return roots


def _reservations(
    queues: Sequence[tuple[Rank, ReservingQueue]], prospect: Callable[[str], Prospect], before: Roots
) -> dict[Root, HostReservation]:
    """Return, by root, the hosts to reserve for the first waiting request of each equivalence class,
    preferably hosts that were reserved before.
    """
    reserved: dict[Root, HostReservation] = {}
    covered: Bools = np.zeros(0, np.bool_)
    bases = set[str]()  # classes with equal prospects: the first one has reserved the hosts
    for rank, queue in queues:
        if queue.base in bases:
            continue
        if len(bases) == MOST_QUEUES:
            break
        bases.add(queue.base)
        seen = prospect(queue.kind)
        if len(covered) < seen.size:
            covered = np.concatenate([covered, np.zeros(seen.size - len(covered), np.bool_)])
        left = np.flatnonzero(~covered[seen.positions])
        covered[seen.positions] = True
        for root in _nearest(seen, left, queue.needs, before):
            reserved[root] = HostReservation(rank, queue.kind)
    return reserved


def _nearest(seen: Prospect, left: Ints, needs: int, before: Roots) -> list[Root]:
    """Return, of the hosts at the indices `left`, the hosts that lack the least capacity: as many as would
    take `needs` instances. Hosts in `before` come first.
    """
    if not len(left):
        return []
    far = seen.lacks[left]
    if before:
        stays = [seen.root(int(position)) in before for position in seen.positions[left]]
        far = np.where(stays, -1.0, far)
    found: list[Root] = []
    capacity = 0.0
    for at in left[np.argsort(far, kind="stable")[: MOST_ASKED + needs]]:
        if capacity >= needs:
            break
        position = int(seen.positions[at])
        if seen.admits(position):
            found.append(seen.root(position))
            capacity += max(float(seen.capacities[at]), 1.0)
    return found
