"""The result of choosing for one instance, and instances that just joined a server group."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

import msgspec

from bus.decisions import AlsoAsked, Decision, Record, Removal
from bus.queries import Candidate
from bus.vocabulary import Allocations, Id
from scheduler_worker.core.scale import scores


class CapacityReservation(Protocol):
    """Chosen capacity of a host that counts as used until placement's index shows the claim."""

    @property
    def allocations(self) -> Allocations: ...

    @property
    def root(self) -> str: ...


class HasReservations(Protocol):
    @property
    def unsettled(self) -> Sequence[CapacityReservation]:
        """Return the reservations whose claims have no result yet."""

    def enter(self, way: Candidate) -> CapacityReservation:
        pass

    def drop(self, promise: CapacityReservation) -> None:
        """Release a reservation whose claim failed."""


class Pick(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The choices of one claim, best host first; capacity is reserved for the first choice only."""

    choices: tuple[Candidate, ...]
    promise: CapacityReservation
    considered: int
    removals: tuple[Removal, ...]
    record: Record
    scores: dict[str, float]  # of the first host
    notes: tuple[str, ...] = ()
    spares: tuple[Candidate, ...] = ()
    crossed: bool = False  # is the first of them in another scheduler's slice?

    @property
    def root(self) -> str:
        return self.choices[0].root

    def decision(self, root: str, refused: tuple[str, ...], asked: AlsoAsked | None = None) -> Decision:
        """Return the decision for the claimed host, which is a later one if placement refused the first."""
        record = self.record
        if root != self.root or asked is not None:
            better = takewhile(lambda way: way.root != root, self.choices)
            turned_down = tuple(dict.fromkeys(way.root for way in better))
            record = msgspec.structs.replace(record, turned_down=turned_down, asked=asked)
        return Decision(
            considered=self.considered,
            removals=self.removals,
            scores=self.scores if root == self.root else scores_of(record, root),
            refused=refused,
            notes=self.notes,
            record=record,
        )


def scores_of(record: Record, root: str) -> dict[str, float]:
    for host in record.hosts:
        if host.root == root and not host.refused:
            return scores(record.scales, host)
    return {}


class Joined:
    """Instances that joined server groups in batches in progress; later they may have moved or left."""

    def __init__(self) -> None:
        self._places: dict[Id, dict[Id, tuple[str, int]]] = {}  # group → member → root, the batch begun last
        self._under_way: set[int] = set()
        self._last = 0

    def begin(self) -> int:
        """Begin a batch of requests, before its server groups are queried."""
        self._last += 1
        self._under_way.add(self._last)
        return self._last

    def end(self, batch: int) -> None:
        self._under_way.discard(batch)
        if not self._places:
            return
        oldest = min(self._under_way, default=self._last + 1)
        for group, members in list(self._places.items()):
            self._places[group] = left = {one: there for one, there in members.items() if there[1] >= oldest}
            if not left:
                del self._places[group]

    def join(self, group: Id, member: Id, root: str) -> None:
        """Record that a group's member was chosen for a host; recorded again: was claimed there."""
        self._places.setdefault(group, {})[member] = root, self._last

    def leave(self, group: Id, member: Id) -> None:
        self._places.get(group, {}).pop(member, None)

    def of(self, group: Id) -> dict[Id, str]:
        return {member: root for member, (root, _) in self._places.get(group, {}).items()}

    def copy(self) -> "Joined":
        other = Joined()
        other._places = {group: dict(members) for group, members in self._places.items()}
        return other
