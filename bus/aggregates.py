"""Messages that query and edit aggregates (groups of hosts with metadata) in placement."""

from collections.abc import AsyncIterator
from typing import Annotated, Final

from msgspec import Meta, field, structs

from bus.protocol import Ask
from bus.vocabulary import (
    END,
    Cause,
    Contended,
    Id,
    LargeMap,
    LimitReached,
    LongList,
    Message,
    Missing,
    Ordinal,
    ShortList,
    SmallMap,
    Tagged,
    Taken,
    Text,
    Value,
    Whole,
)

MetadataKey = Annotated[str, Meta(min_length=1, max_length=255)]
MetadataValue = Annotated[str, Meta(max_length=4000)]

ZONE: Final = "availability_zone"  # the key of metadata that makes an aggregate a zone


class Aggregate(Value, frozen=True, kw_only=True):
    """A set of hosts with metadata: availability zone, tenants, and options of filters and weighers."""

    id: Id
    name: Text = ""  # empty: created by a client of the Placement API, which knows only ids
    metadata: LargeMap[MetadataKey, MetadataValue] = field(default_factory=dict)
    gone: bool = False  # deleted; published once


# No name may be a UUID: operators name an aggregate by its id or its name.
_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
AggregateName = Annotated[
    str, Meta(min_length=1, max_length=255, pattern=rf"^(?!{_UUID}{END})", description="no UUID")
]
HostName = Annotated[str, Meta(min_length=1, max_length=200)]  # agent's name for it, or its root's name or id
Hosts = Annotated[tuple[HostName, ...], Meta(max_length=2000)]


class MakeAggregate(Tagged, frozen=True, kw_only=True):
    """An edit that creates an aggregate, or gives a name to an aggregate that a Placement API client created
    without a name.
    """

    aggregate: Id
    name: AggregateName
    metadata: SmallMap[MetadataKey, MetadataValue] = field(default_factory=dict)
    hosts: Hosts = ()
    force: bool = False  # make the edit even if the zone of a host with instances changes


class ChangeAggregate(Tagged, frozen=True, kw_only=True):
    """An edit that makes all the given changes of an aggregate or none; changes already made are no error."""

    aggregate: Id
    name: AggregateName | None = None
    set: SmallMap[MetadataKey, MetadataValue] = field(default_factory=dict)
    unset: ShortList[MetadataKey] = ()
    add: Hosts = ()
    remove: Hosts = ()
    force: bool = False  # as in MakeAggregate


class DropAggregate(Tagged, frozen=True, kw_only=True):
    """Delete an aggregate. If it has hosts, the deletion is refused unless `force` is set."""

    aggregate: Id
    force: bool = False  # delete the aggregate even if it has hosts


AggregateEdit = MakeAggregate | ChangeAggregate | DropAggregate


class AggregateEdited(Tagged, frozen=True, kw_only=True):
    """The reply to a successful edit of an aggregate: its new state, or `gone` if the edit deleted it."""

    aggregate: Aggregate
    made: bool = False
    added: LongList[Text] = ()  # roots of added hosts
    removed: LongList[Text] = ()
    number: Whole = 0  # change number; 0: nothing changed
    warnings: LongList[Cause] = ()  # effects that the operator may not expect


class TwoZones(Tagged, frozen=True, kw_only=True):
    """The refusal of an edit of an aggregate that would put a host into a second availability zone."""

    host: Text
    zone: Text
    other: Text
    by: Text  # what sets the other zone: an aggregate, or the reports of the host's agent

    def __str__(self) -> str:
        return f"{self.host} cannot be in zone {self.zone!r}: it is in zone {self.other!r} by {self.by}"


class ZoneInUse(Tagged, frozen=True, kw_only=True):
    """The refusal of an edit of an aggregate that would change the zone of hosts with instances."""

    hosts: LongList[Text]  # some of them
    count: Whole
    zone: Text  # current zone of the hosts
    to: Text

    def __str__(self) -> str:
        more = f" and {self.count - len(self.hosts)} more" if self.count > len(self.hosts) else ""
        before, after = (f"zone {zone!r}" if zone else "no zone" for zone in (self.zone, self.to))
        return (
            f"{', '.join(self.hosts)}{more}: hosts with instances would move from {before} to {after};"
            " use force to do it nevertheless"
        )


class HasHosts(Tagged, frozen=True, kw_only=True):
    """The refusal to delete an aggregate, because it has hosts."""

    aggregate: Text
    hosts: LongList[Text]  # some of them
    count: Whole

    def __str__(self) -> str:
        more = f" and {self.count - len(self.hosts)} more" if self.count > len(self.hosts) else ""
        return f"aggregate {self.aggregate} has hosts: {', '.join(self.hosts)}{more}; remove them first"


AggregateRefusal = Missing | Taken | TwoZones | ZoneInUse | HasHosts | LimitReached | Contended
AggregateResult = AggregateEdited | AggregateRefusal


def refusal_reason(refusal: AggregateRefusal) -> str:
    """Return the reason why an edit of an aggregate was refused, as a sentence for operators."""
    match refusal:
        case Missing(what=kind, names=names):
            return f"there is no {kind} {', '.join(names)}"
        case Taken(what="name", value=name):
            return f"another aggregate has the name {name!r}"
        case Taken(value=name):
            return f"the aggregate of that id exists already, with the name {name!r}"
        case Contended():
            return "lost a race with other changes; nothing was changed, try again"
        case _:
            return str(refusal)


class FindAggregates(Message, frozen=True, kw_only=True):
    """A query for the aggregates that meet all given conditions (none: all aggregates), sorted by id."""

    ids: LongList[Id] = ()
    name: Text = ""
    host: Text = ""  # only aggregates with this host: agent's name of the host, or its root's name or id
    key: Text = ""  # only aggregates with this key in their metadata
    after: Text = ""  # only ids after this one
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class AggregatesFound(Message, frozen=True, kw_only=True):
    """A page of aggregates, the answer to FindAggregates."""

    seen: Ordinal  # the answer includes all changes up to this change number
    aggregates: LongList[Aggregate]
    hosts: LargeMap[Text, Whole] = field(default_factory=dict)  # id → number of hosts, if any
    more: bool = False  # there are further pages


class AggregateEditRequested(Message, frozen=True, kw_only=True):
    edit: AggregateEdit


class AggregateEditAnswered(Message, frozen=True, kw_only=True):
    result: AggregateResult


async def every_aggregate(
    ask: Ask[FindAggregates, AggregatesFound], query: FindAggregates
) -> AsyncIterator[AggregatesFound]:
    """Query placement page by page; yield the pages with all aggregates that match the query."""
    more = True
    while more:
        page = await ask(query)
        yield page
        more = page.more and bool(page.aggregates)
        query = structs.replace(query, after=page.aggregates[-1].id) if more else query
