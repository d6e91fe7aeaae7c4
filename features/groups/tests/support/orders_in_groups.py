"""Orders and alternatives whose instances join a server group."""

from typing import Any

from msgspec import structs

from bus.messages import BuildRequested
from features.groups.core.joined_group import JoinedGroup, with_group
from features.groups.messages import GroupPart, GroupPolicy, ServerGroup
from scheduler_worker.core.extension import Alternative
from scheduler_worker.extension import Order
from tests.support.ids import uid
from tests.support.ranking_builders import Hall
from tests.support.rule_builders import a_wish


def in_group(hall: Hall, request: BuildRequested, group: ServerGroup) -> Order:
    """Return the order of a request whose instances join a server group."""
    request = structs.replace(request, parts=request.parts.having(GroupPart(group=group.id)))
    return with_group(hall.order(request), group)


def joining(policy: GroupPolicy, members: dict[str, int], most: int = 1, **fields: Any) -> Alternative:
    """Return an alternative whose instances join a server group with members on the given hosts."""
    group = ServerGroup(id=uid(1, "9"), name="web", policy=policy, max_per_host=most)
    return a_wish(parts=(JoinedGroup(group, members),), **fields)
