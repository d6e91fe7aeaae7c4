"""Reserves hosts for the first waiting request of each equivalence class, so that later requests of other
classes cannot delay it.

The first request reserves, of the hosts that it could ever use, the host that is nearest to fitting. Later
requests may use every other host.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
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
    needs: int

    @property
    def first(self) -> Rank: ...


class ReservedHosts:
    """The hosts reserved for waiting requests of this scheduler, and of the other schedulers."""

    def __init__(self) -> None:
        self.own: dict[Root, HostReservation] = {}
        self.elsewhere: dict[Root, QueueKey] = {}
        self._sequence: dict[str, int] = {}  # class → its place among the classes at the last `renew`

    def renew(self, queues: Sequence[ReservingQueue], prospect: Callable[[str], Prospect]) -> list[Root]:
        """Reserve hosts for the first request of each class. Return the hosts that requests may use now,
        although they could not before.
        """
        queues = sorted(queues, key=lambda queue: queue.first)
        before, self.own = self.own, _reservations(queues, prospect, self.own)
        last, overtaken = -1, set[str]()  # classes that come after a class now that they preceded before
        for queue in queues:
            place = self._sequence.get(queue.kind, last)
            if place < last:
                overtaken.add(queue.kind)
            last = max(last, place)
        self._sequence = {queue.kind: place for place, queue in enumerate(queues)}
        return [
            root
            for root, old in before.items()
            if (new := self.own.get(root)) is None or new.kind != old.kind or new.kind in overtaken
        ]

    def set_elsewhere(self, reserved: Mapping[Root, QueueKey]) -> list[Root]:
        """Set the hosts that other schedulers have reserved. Return the hosts that requests may use now,
        although they could not before.
        """
        before, self.elsewhere = self.elsewhere, dict(reserved)
        return [root for root, key in before.items() if root not in reserved or reserved[root] > key]

    def before(self, rank: Rank, kind: str) -> set[Root]:
        """Return the hosts reserved for requests of other classes, and of other schedulers, before `rank`."""
        key = rank.key  # shares at different schedulers are not comparable: between schedulers, age decides
        roots = {root for root, first in self.elsewhere.items() if first < key}
        roots.update(root for root, own in self.own.items() if own.rank < rank and own.kind != kind)
        return roots


def _reservations(
    queues: Sequence[ReservingQueue], prospect: Callable[[str], Prospect], before: Roots
) -> dict[Root, HostReservation]:
    """Return, by root, the hosts to reserve for the first waiting request of each equivalence class,
    preferably hosts that were reserved before.
    """
    reserved: dict[Root, HostReservation] = {}
    covered: Bools = np.zeros(0, np.bool_)
    for queue in queues[:MOST_QUEUES]:
        seen = prospect(queue.kind)
        if len(covered) < seen.size:
            covered = np.concatenate([covered, np.zeros(seen.size - len(covered), np.bool_)])
        left = np.flatnonzero(~covered[seen.positions])
        covered[seen.positions] = True
        for root in _nearest(seen, left, queue.needs, before):
            reserved[root] = HostReservation(queue.first, queue.kind)
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
