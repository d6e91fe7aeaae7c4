"""The result of choosing for one instance: hosts to claim, best first, alternates, and the weights."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

import msgspec

from bus.decisions import AlsoAsked, Decision, Record, Removal
from bus.queries import Candidate
from bus.vocabulary import Allocations
from scheduler_worker.core.scale import scores


class CapacityReservation(Protocol):
    """A reservation: chosen capacity that counts as used until the replica shows the claim."""

    @property
    def allocations(self) -> Allocations: ...

    @property
    def root(self) -> str: ...


class HasReservations(Protocol):
    @property
    def unsettled(self) -> Sequence[CapacityReservation]:
        """Return the reservations whose claims have no result yet."""
        ...

    def enter(self, way: Candidate) -> CapacityReservation:
        """Reserve the capacity of this candidate."""
        ...

    def drop(self, promise: CapacityReservation) -> None:
        """Release a reservation whose claim failed."""
        ...


class Pick(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A claim's choices: each host in its ways before the next. The first of them is promised."""

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
        """Return the decision for this host: the first one, or a later one if placement refused the first."""
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
    """Return the weights of this host, and their sum."""
    for host in record.hosts:
        if host.root == root and not host.refused:
            return scores(record.scales, host)
    return {}
