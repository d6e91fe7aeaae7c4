"""Server groups, and what can be asked of placement about them. Nothing of one changes while it is there."""

from typing import Annotated, Literal

from msgspec import Meta, field

from bus.not_done import Contended, InUse, Taken
from bus.vocabulary import (
    UNSAID_ID,
    Amount,
    Count,
    Id,
    KeystoneId,
    LargeMap,
    LongList,
    Message,
    Name,
    Tagged,
    Text,
    Value,
)

GroupPolicy = Literal["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"]


class ServerGroup(Value, frozen=True, kw_only=True):
    """Instances that are to be together, or apart. What it demands is judged when a host is claimed."""

    id: Id
    name: Name
    policy: GroupPolicy
    max_per_host: Amount = 1  # anti-affinity
    project: KeystoneId = UNSAID_ID
    members: LargeMap[Text, LongList[Text]] = field(default_factory=dict)  # consumer → the roots it is on
    # clean-up of one that left → the roots its guest may still be on
    left: LargeMap[Text, LongList[Text]] = field(default_factory=dict)


# Edits


class MakeGroup(Tagged, frozen=True, kw_only=True):
    """Who makes one chooses its id: made twice, it is one. Its name is one of a kind in its project."""

    group: Id
    name: Name
    policy: GroupPolicy
    max_per_host: Amount = 1  # anti-affinity
    project: KeystoneId = UNSAID_ID


class DropGroup(Tagged, frozen=True, kw_only=True):
    """With `force` while it has members, too: they stay where they are, in no group."""

    group: Id
    force: bool = False


GroupEdit = MakeGroup | DropGroup


# Outcomes


class GroupEdited(Tagged, frozen=True, kw_only=True):
    group: ServerGroup | None = None  # None: there is none any more
    changed: bool = False  # False: it was so already


GroupResult = GroupEdited | Taken | InUse | Contended


# Questions and answers


class FindGroups(Message, frozen=True, kw_only=True):
    """Server groups that are all of this, with who is in them and where. Without any of it: all."""

    ids: LongList[Id] = ()
    project: Text = ""
    name: Text = ""
    after: Text = ""  # in the order of their ids, those behind this one
    limit: Count = 0  # 0: all of them, which must fit into one message
    members: Annotated[tuple[Id, ...], Meta(max_length=1000)] = ()  # that one of these is in


class GroupsFound(Message, frozen=True, kw_only=True):
    groups: LongList[ServerGroup]


class GroupEditRequested(Message, frozen=True, kw_only=True):
    """Make or drop a server group."""

    edit: GroupEdit


class GroupEditAnswered(Message, frozen=True, kw_only=True):
    result: GroupResult
