"""Server groups, and messages that query and edit them in placement. Only the members of a server group can
change after its creation.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from msgspec import Meta, convert, field, structs

from bus.acts import Act, Requested, Target, completed, sent
from bus.claims import ConsumerClaim
from bus.feature import MessagesPart
from bus.parts import ClaimParts, ConsumerPart, RequestPart, RequestParts
from bus.projects import ProjectsFound
from bus.topics import ANYONE, Query
from bus.undo import Past, UndoRule
from bus.vocabulary import (
    UNSAID_ID,
    Amount,
    Contended,
    Count,
    FreeText,
    Id,
    InstanceId,
    InUse,
    KeystoneId,
    LargeMap,
    LimitReached,
    LongList,
    Message,
    Name,
    ObjectKind,
    ProjectOrNone,
    ShortList,
    Tagged,
    Taken,
    Text,
    Value,
    names,
    names_new,
)
from features.groups.constraints import NO_TOPOLOGY, DomainConstraints

GROUP_KIND = ObjectKind("server group", "worker", "the scheduler, features/groups/server_groups.py")
GroupId = Annotated[Id, names(GROUP_KIND)]
NewGroupId = Annotated[Id, names_new(GROUP_KIND)]

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

    def on_hosts(self, members: Mapping[str, Sequence[str]], left: Mapping[str, Sequence[str]]) -> Self:
        """Return a copy with the hosts of these members and of these guests that were left behind."""
        return structs.replace(
            self,
            members={id_: tuple(roots) for id_, roots in members.items()},
            left={id_: tuple(roots) for id_, roots in left.items()},
        )


class MakeGroup(Tagged, frozen=True, kw_only=True):
    """An edit that creates a server group, with a name unique in its project; a repeated edit is no error."""

    group: NewGroupId
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
    """The answer to a successful edit of a server group."""

    group: ServerGroup | None = None  # None: the group was deleted
    changed: bool = False  # False: nothing changed


GroupResult = GroupEdited | Taken | InUse | LimitReached | Contended


class FindGroups(Message, frozen=True, kw_only=True):
    """A query for the server groups that meet all given conditions, with their members and hosts."""

    ids: LongList[GroupId] = ()
    project: ProjectOrNone = ""
    name: FreeText = ""
    after: FreeText = ""  # only ids after this one
    limit: Count = 0  # maximum number of groups; 0: all, which must fit into one message
    members: Annotated[
        tuple[InstanceId, ...], Meta(max_length=1000)
    ] = ()  # only groups with at least one of them


class GroupsFound(Message, frozen=True, kw_only=True):
    """The server groups that match FindGroups."""

    groups: LongList[ServerGroup]


class GroupEditRequested(Message, frozen=True, kw_only=True):
    """A request to create or delete a server group."""

    edit: GroupEdit


class GroupEditAnswered(Message, frozen=True, kw_only=True):
    result: GroupResult


# Parts of messages


class GroupPart(RequestPart, frozen=True, kw_only=True):
    """The server group that the instances of a request join."""

    flat: ClassVar = {"group": "hints"}

    group: GroupId | None = None
    # members of the group, as another system knows them that creates the instances
    members: ShortList[InstanceId] = ()

    def recorded(self) -> Self:
        return type(self)(group=self.group)


class GroupClaim(ConsumerPart, frozen=True, kw_only=True):
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


GROUPS = Query(
    "placement.groups", FindGroups, GroupsFound, "server groups with their members", ANYONE, "placement"
)
EDIT_GROUP = Query(
    "placement.group",
    GroupEditRequested,
    GroupEditAnswered,
    "create or delete a server group",
    ANYONE,
    "placement",
)


# The acts on server groups.


def _of_group(
    message: GroupEditRequested, target: Target, owners: ProjectsFound, state: Message | None
) -> Target:
    is_new = isinstance(message.edit, MakeGroup) and isinstance(state, GroupsFound) and not state.groups
    unproven = replace(target, cell="", project="")
    return target if is_new else unproven if state is None else completed(unproven, state)


def _claimed(part: GroupPart) -> GroupClaim | None:
    return None if part.group is None else GroupClaim(group=part.group)


def _reversed(asked: GroupEditRequested, past: Past) -> Sequence[Message]:
    before, after = past.item("groups", "id", asked.edit.group)
    if not before:
        return (GroupEditRequested(edit=DropGroup(group=asked.edit.group)),) if after else ()
    fields = {name: before[name] for name in MakeGroup.__struct_fields__ if name in before}
    former = {**fields, "is": "MakeGroup", "group": before["id"]}
    return (GroupEditRequested(edit=convert(former, MakeGroup)),)


PART = MessagesPart(
    parts={RequestParts: GroupPart, ClaimParts: GroupClaim},
    restored={GroupPart: _claimed},
    acts=(Act("server group", "operator", "server groups", sent(EDIT_GROUP), limited_by=("projects",)),),
    requested={
        GroupEditRequested: Requested(
            state=lambda message: (GROUPS, FindGroups(ids=(message.edit.group,))),
            real=_of_group,
            targets=("group",),
            undo=UndoRule(EDIT_GROUP, _reversed),
        )
    },
    done=(GroupEdited,),
)
