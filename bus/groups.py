"""Server groups, and messages that query and edit them in placement. Only the members of a server group can
change after its creation.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from bus.domains import NO_TOPOLOGY, DomainConstraints
from bus.vocabulary import (
    UNSAID_ID,
    Amount,
    Contended,
    Count,
    Id,
    InUse,
    KeystoneId,
    LargeMap,
    LimitReached,
    LongList,
    Message,
    Name,
    Tagged,
    Taken,
    Text,
    Value,
)

# topology: only the group's topology restricts its members
GroupPolicy = Literal["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity", "topology"]


class ServerGroup(Value, frozen=True, kw_only=True):
    """Instances that a policy places on the same host or on different hosts, or that a topology places into
    the same domain or different domains. Each claim checks policy and topology.
    """

    id: Id
    name: Name
    policy: GroupPolicy
    max_per_host: Amount = 1  # anti-affinity
    project: KeystoneId = UNSAID_ID
    topology: DomainConstraints = NO_TOPOLOGY  # in addition to the policy
    # consumer → roots with its allocations
    members: LargeMap[Text, LongList[Text]] = field(default_factory=dict)
    # holder consumer of a former member → roots where its guest may still be
    left: LargeMap[Text, LongList[Text]] = field(default_factory=dict)


class MakeGroup(Tagged, frozen=True, kw_only=True):
    """An edit that creates a server group, with a name unique in its project; a repeated edit is no error."""

    group: Id
    name: Name
    policy: GroupPolicy
    max_per_host: Amount = 1  # anti-affinity
    project: KeystoneId = UNSAID_ID
    topology: DomainConstraints = NO_TOPOLOGY  # in addition to the policy


class DropGroup(Tagged, frozen=True, kw_only=True):
    """An edit that deletes a server group; `force`: also one with members, which stay on their hosts."""

    group: Id
    force: bool = False


GroupEdit = MakeGroup | DropGroup


class GroupEdited(Tagged, frozen=True, kw_only=True):
    group: ServerGroup | None = None  # None: the group was deleted
    changed: bool = False  # False: nothing changed


GroupResult = GroupEdited | Taken | InUse | LimitReached | Contended


class FindGroups(Message, frozen=True, kw_only=True):
    """A query for the server groups that meet all given conditions, with their members and hosts."""

    ids: LongList[Id] = ()
    project: Text = ""
    name: Text = ""
    after: Text = ""  # only ids after this one
    limit: Count = 0  # maximum number of groups; 0: all, which must fit into one message
    members: Annotated[tuple[Id, ...], Meta(max_length=1000)] = ()  # only groups with at least one of them


class GroupsFound(Message, frozen=True, kw_only=True):
    groups: LongList[ServerGroup]


class GroupEditRequested(Message, frozen=True, kw_only=True):
    """A request to create or delete a server group."""

    edit: GroupEdit


class GroupEditAnswered(Message, frozen=True, kw_only=True):
    result: GroupResult
