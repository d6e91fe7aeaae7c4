"""Parts of messages that name a server group."""

from bus.parts import ClaimParts, RequestParts
from features.groups.messages import GroupClaim, GroupPart


def joining(group: str) -> ClaimParts:
    """Return the parts of a claim that joins a server group."""
    return ClaimParts(GroupClaim(group=group))


def in_group(group: str) -> RequestParts:
    """Return the parts of a request whose instances join a server group."""
    return RequestParts(GroupPart(group=group))
