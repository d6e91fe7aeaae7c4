"""Checks that a cell claims, releases and retires only what is in the cell."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import structs

from bus import claims
from bus.vocabulary import UNSAID_ID, Allocations, common, without

ENDED_ELSEWHERE = "it has ended, not by this cell"
MOST_ATTEMPTS = 1000  # ids of holder consumers are accepted for attempts up to this number


class Owner(NamedTuple):
    """The project, user and consumer type for which a consumer was placed. Only read if a cell sent the
    requests.
    """

    project: str = UNSAID_ID
    user: str = UNSAID_ID
    type: str | None = None  # None: a client claimed by a version of the Placement API without types


UNKNOWN_OWNER = Owner()


@dataclass(frozen=True, slots=True)
class CellLimits:
    """Checks that a cell's claims and releases use no root providers outside the cell, and that they change
    nothing of a consumer but its allocations.
    """

    cell: str
    cells: Mapping[str, str]  # root → cell
    sharing: Collection[str]  # sharing providers that belong to no cell

    def bars_holder(self, consumer: str, places: Iterable[tuple[str, str]]) -> str:
        """Return why the cell may not change a consumer with allocations at `places` (pairs of provider and
        root); "" if it may.
        """
        cells = {self.cells.get(root, "") for _, root in places}
        if self.cell in cells and cells <= {self.cell, ""}:
            return ""
        return f"consumer {consumer}: it was not placed in cell {self.cell}"

    def bars_choice(self, places: Iterable[tuple[str, str]]) -> str:
        """Return why the cell may not place a consumer at `places` (pairs of provider and root); "" if it
        may.
        """
        at_home = False
        for provider, root in places:
            cell = self.cells.get(root, "")
            at_home |= cell == self.cell
            if cell != self.cell and (cell or provider not in self.sharing):
                return f"provider {provider}: it is not in cell {self.cell}"
        return "" if at_home else f"nothing of it is in cell {self.cell}"

    def bars_owner(self, claim: claims.ConsumerClaim, owner: Owner, holder_types: Collection[str]) -> str:
        """Return why the cell may not claim for the consumer of this claim; "" if it may. The consumer must
        be an instance. The claim's project, user and type must be those for which it was placed, unless these
        are unknown.
        """
        if owner.type in holder_types:
            return f"consumer {claim.consumer}: it is of type {owner.type}, and a cell claims for instances"
        for field_, claimed, placed, unknown in (
            ("project", claim.project, owner.project, UNSAID_ID),
            ("user", claim.user, owner.user, UNSAID_ID),
            ("type", claim.type, owner.type, None),
        ):
            if claimed not in (placed, None) and placed != unknown:
                return f"consumer {claim.consumer}: it was not placed for {field_} {claimed}"
        if claim.type in holder_types:
            return f"consumer {claim.consumer}: a cell claims nothing of type {claim.type}"
        return ""

    def refuses_holder(self, consumer: str, holder: str) -> str:
        """Return why the cell may not use `holder` as the id of a holder consumer; "" if it may. Only ids
        derived from the build's id are allowed, so that a cell cannot occupy the id of another build.
        """
        if any(holder == claims.holder_consumer(consumer, number) for number in range(1, MOST_ATTEMPTS + 1)):
            return ""
        return f"consumer {holder}: it is no clean-up of {consumer}"


def ended(retired: claims.Retired, cell: str) -> claims.Retired:
    """Return the retirement of a consumer as `cell`, which sent the request, may see it: the reason is hidden
    unless this cell retired the consumer. If `cell` is empty, the reason is visible.
    """
    if not cell:
        return retired
    if retired.cell == cell:
        return structs.replace(retired, cell="")
    return claims.Retired(why=ENDED_ELSEWHERE)


# A move between two hosts that use the same pool (such as shared storage): the amount of the pool that both
# hosts need is counted once. While the move is in progress the instance holds this amount, and the holder
# consumer of the source host holds only what the source needs in addition. If the move is undone, the
# instance keeps the amount.


def shared_by(source: Allocations, destination: Allocations, sharing: Collection[str]) -> Allocations:
    """Return the amounts of sharing providers that both the source and the destination of a move need."""
    shared = common(source, destination)
    return {provider: amounts for provider, amounts in shared.items() if provider in sharing}


def kept_on_return(
    former: Allocations, taken_over: Allocations, source: Allocations, sharing: Collection[str]
) -> Allocations:
    """Return the amounts at sharing providers that an instance keeps when its move is undone.

    `former`: its allocations during the move; `source`: the allocations that it needs on the source host;
    `taken_over`: the allocations that it gets back from the holder consumer. The result is the part of
    `former` that `source` needs in addition to `taken_over`.
    """
    return shared_by(former, without(source, taken_over), sharing)
