"""What can be asked of placement about aggregates, and what it answers.

Members are not kept here: they are the providers that have the aggregate, as the Placement API sets them.
"""

from typing import Annotated, Final

from msgspec import Meta, field

from bus.not_done import Contended, Missing, Taken
from bus.vocabulary import (
    END,
    Cause,
    Id,
    LargeMap,
    LongList,
    Message,
    Ordinal,
    ShortList,
    SmallMap,
    Tagged,
    Text,
    Value,
    Whole,
)

MetadataKey = Annotated[str, Meta(min_length=1, max_length=255)]
MetadataValue = Annotated[str, Meta(max_length=4000)]

ZONE: Final = "availability_zone"  # the key of metadata that makes an aggregate a zone


class Aggregate(Value, frozen=True, kw_only=True):
    """Hosts that an operator put together, and what he says of them: zone, tenants, options of rules."""

    id: Id
    name: Text = ""  # none: only a client of the Placement API has named its id
    metadata: LargeMap[MetadataKey, MetadataValue] = field(default_factory=dict)
    gone: bool = False  # told once, when it is dropped


# A uuid is an id and never a name, so that people may say either.
_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
AggregateName = Annotated[
    str, Meta(min_length=1, max_length=255, pattern=rf"^(?!{_UUID}{END})", description="no UUID")
]
HostName = Annotated[str, Meta(min_length=1, max_length=200)]  # as its owner calls it, its root's name or id
Hosts = Annotated[tuple[HostName, ...], Meta(max_length=2000)]


# Edits


class MakeAggregate(Tagged, frozen=True, kw_only=True):
    """Name it and say what it is; it may be one that a client of the Placement API made, by naming its id."""

    aggregate: Id
    name: AggregateName
    metadata: SmallMap[MetadataKey, MetadataValue] = field(default_factory=dict)
    hosts: Hosts = ()
    force: bool = False  # even where it changes the zone of a host with instances


class ChangeAggregate(Tagged, frozen=True, kw_only=True):
    """All of it or nothing. What it is already, and who is in it or out of it already, is no news."""

    aggregate: Id
    name: AggregateName | None = None
    set: SmallMap[MetadataKey, MetadataValue] = field(default_factory=dict)
    unset: ShortList[MetadataKey] = ()
    add: Hosts = ()
    remove: Hosts = ()
    force: bool = False  # as above


class DropAggregate(Tagged, frozen=True, kw_only=True):
    aggregate: Id
    force: bool = False  # with hosts in it, which leave it


AggregateEdit = MakeAggregate | ChangeAggregate | DropAggregate


# Outcomes


class AggregateEdited(Tagged, frozen=True, kw_only=True):
    """Done; the aggregate as it is now, `gone` when it was dropped."""

    aggregate: Aggregate
    made: bool = False
    added: LongList[Text] = ()  # roots
    removed: LongList[Text] = ()
    number: Whole = 0  # the change that made it so; 0: nothing had to change
    warnings: LongList[Cause] = ()  # what of the edit will not do what its author may think


class TwoZones(Tagged, frozen=True, kw_only=True):
    """A host is in one availability zone at most."""

    host: Text
    zone: Text
    other: Text
    by: Text  # what puts it into the other: an aggregate, or its owner's reports

    def __str__(self) -> str:
        return f"{self.host} cannot be in zone {self.zone!r}: it is in zone {self.other!r} by {self.by}"


class ZoneInUse(Tagged, frozen=True, kw_only=True):
    """These hosts have instances, which were promised the zone they are in."""

    hosts: LongList[Text]  # some of them
    count: Whole
    zone: Text  # the one they are in
    to: Text

    def __str__(self) -> str:
        more = f" and {self.count - len(self.hosts)} more" if self.count > len(self.hosts) else ""
        there, then = (f"zone {one!r}" if one else "no zone" for one in (self.zone, self.to))
        return (
            f"{', '.join(self.hosts)}{more}: with instances, and would go from {there} to {then};"
            " force does it all the same"
        )


class HasHosts(Tagged, frozen=True, kw_only=True):
    aggregate: Text
    hosts: LongList[Text]  # some of them
    count: Whole

    def __str__(self) -> str:
        more = f" and {self.count - len(self.hosts)} more" if self.count > len(self.hosts) else ""
        return f"aggregate {self.aggregate} has hosts: {', '.join(self.hosts)}{more}; take them out first"


AggregateRefusal = Missing | Taken | TwoZones | ZoneInUse | HasHosts | Contended
AggregateResult = AggregateEdited | AggregateRefusal


def told(refusal: AggregateRefusal) -> str:
    """Why it was not done, for people."""
    match refusal:
        case Missing(what=what, names=names):
            return f"there is no {what} {', '.join(names)}"
        case Taken(what="name", value=name):
            return f"another aggregate has the name {name!r}"
        case Taken(value=name):
            return f"the aggregate of that id is there already, by the name {name!r}"
        case Contended():
            return "others change the same; nothing was done, try again"
        case _:
            return str(refusal)


# Questions and answers


class FindAggregates(Message, frozen=True, kw_only=True):
    """Aggregates that meet all of this; without any of it: all. In the order of their ids."""

    ids: LongList[Id] = ()
    name: Text = ""
    host: Text = ""  # that this host is in: as its owner calls it, its root's name or id
    key: Text = ""  # with metadata under this key
    after: Text = ""  # those behind this id
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class AggregatesFound(Message, frozen=True, kw_only=True):
    seen: Ordinal  # the last change this answer knows of
    aggregates: LongList[Aggregate]
    hosts: LargeMap[Text, Whole] = field(default_factory=dict)  # id → how many are in it, where there are any
    more: bool = False  # ask again, after the last of these


class AggregateEditRequested(Message, frozen=True, kw_only=True):
    edit: AggregateEdit


class AggregateEditAnswered(Message, frozen=True, kw_only=True):
    result: AggregateResult
