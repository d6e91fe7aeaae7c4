"""Parts of messages that name a server group."""

from bus.parts import ClaimParts, RequestParts
from features.groups.constraints import DomainConstraints
from features.groups.messages import GroupClaim, GroupPart


def joining(group: str, topology: DomainConstraints | None = None) -> ClaimParts:
    """Return the parts of a claim that joins a server group, and makes it with a topology if one is given."""
    return ClaimParts(GroupClaim(group=group, topology=topology))


def in_group(group: str) -> RequestParts:
    """Return the parts of a request whose instances join a server group."""
    return RequestParts(GroupPart(group=group))
