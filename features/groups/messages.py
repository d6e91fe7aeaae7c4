"""Parts of messages about server groups."""

from collections.abc import Iterable
from typing import ClassVar, Self

from bus.claims import ConsumerClaim
from bus.domains import DomainConstraints
from bus.parts import ClaimParts, Part, RequestParts
from bus.vocabulary import Id, ShortList


class GroupPart(Part, frozen=True, kw_only=True):
    """The server group that the instances of a request join."""

    flat: ClassVar = {"group": "hints"}

    group: Id | None = None
    # members of the group, as another system knows them that creates the instances
    members: ShortList[Id] = ()

    def recorded(self) -> Self:
        return type(self)(group=self.group)


class GroupClaim(Part, frozen=True, kw_only=True):
    """The server group that a consumer joins; its policy is judged with the claim."""

    group: Id
    # If the group does not exist, the claim creates it with this topology, for one request.
    topology: DomainConstraints | None = None


def group_of(parts: RequestParts) -> Id | None:
    """Return the server group that a request names."""
    part = parts.get(GroupPart)
    return None if part is None else part.group


def claimed_group(parts: ClaimParts) -> Id | None:
    """Return the server group that a claim joins; None: unchanged."""
    part = parts.get(GroupClaim)
    return None if part is None else part.group


def topology_claimed(parts: ClaimParts) -> DomainConstraints | None:
    """Return the topology with which a claim creates its group, if the group does not exist."""
    part = parts.get(GroupClaim)
    return None if part is None else part.topology


def groups_of(claims: Iterable[ConsumerClaim]) -> set[Id]:
    """Return the server groups that claims join."""
    return {group for claim in claims if (group := claimed_group(claim.parts)) is not None}


PARTS = {RequestParts: GroupPart, ClaimParts: GroupClaim}
