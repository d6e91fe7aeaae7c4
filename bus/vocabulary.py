"""Basic types of all messages: ids, names, counts, bounded lists, allocations with their arithmetic, base
classes, and refusals of edits in placement.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

MAX_INT = 2**31 - 1
MAX_ORDINAL = 2**62
SHORT = 1000
MAX_GROUPS = 256  # request groups in one query
LONG = 50_000
MAX_RATIO = 3.40282e38  # maximum allocation_ratio, as in the Placement API
KEEP_SECONDS = 7 * 86400.0  # workers store ended work for this time, unless settings state another time
KEEP_ACTS_SECONDS = 90 * 86400.0  # for this time the audit trail stores what operators requested
MAX_CAPACITY = 2**45  # limit for one inventory, so that the sum over 100,000 hosts fits into 64 bits
T = TypeVar("T")
K = TypeVar("K")

# What an id or a name in a message of a client names. The type of each such field declares it, and
# `bus.named_objects` finds the values.


@dataclass(frozen=True)
class ObjectKind:
    """A kind of objects that messages name, and what decides whether a member of projects may name one.

    `judged`: the project of the object's `owner`, which the query for owners returns (`bus.acts`); `member`:
    the value is itself a project, and must be one of the member's (`bus.acts`); `worker`: the worker that has
    the object, named by `by`; `open`: the objects belong to the cloud and not to projects.
    """

    name: str
    judged: Literal["owner", "member", "worker", "open"]
    by: str = ""  # the module that judges, and where


def names(kind: ObjectKind) -> Meta:
    """Return the declaration that a field names an existing object."""
    return Meta(extra={"names": kind})


def names_new(kind: ObjectKind) -> Meta:
    """Return the declaration that a field gives an id to a new object."""
    return Meta(extra={"names": kind, "new": True})


def naming(metas: Iterable[Any]) -> tuple[ObjectKind | None, bool] | None:
    """Return what the annotations of a field declare: the kind of the named object, and whether it is new;
    (None, False) for a text that names no object; None if they declare nothing.
    """
    for meta in metas:
        if isinstance(meta, Meta) and meta.extra and "names" in meta.extra:
            return meta.extra["names"], bool(meta.extra.get("new"))
    return None


INSTANCE_KIND = ObjectKind("instance", "owner")  # a build
REQUEST_KIND = ObjectKind("request", "owner")  # for builds
PROJECT_KIND = ObjectKind("project", "member")
USER_KIND = ObjectKind("user", "open")
HOST_KIND = ObjectKind("host", "open")  # by its name or root
PROVIDER_KIND = ObjectKind("provider", "open")
AGGREGATE_KIND = ObjectKind("aggregate", "open")
CELL_KIND = ObjectKind("cell", "open")
ZONE_KIND = ObjectKind("zone", "open")
FREE = Meta(extra={"names": None})  # the declaration that a text names no object


# Types of fields.

END = r"$(?!\n)"  # end of text: $ alone accepts a trailing newline

Id = Annotated[
    str, Meta(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}" + END, description="a lower-case UUID")
]
Word = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}" + END, description="a name: letters, digits, _ and -")
]
ClientName = Annotated[  # of a program outside berth
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,31}" + END, description="at most 32 letters, digits and -")
]
MAX_NAME = 200  # characters of a Name
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
KeystoneId = Annotated[str, Meta(min_length=1, max_length=255)]  # id of a project or a user
UNSAID_ID = "00000000-0000-0000-0000-000000000000"  # project or user of a request without one
MAX_TEXT = 255  # characters of a Text
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Key = Annotated[str, Meta(max_length=512)]  # of a kind of refused claims, such as `RULE:PROJECT`
PropertyValue = Annotated[str, Meta(max_length=1024), FREE]  # of extra specs, images and instances
MAX_CAUSE = 4000  # characters of a Cause
MADE = {"made": True}  # marks texts that programs make of names and numbers: `bus.causes` shortens them
Cause = Annotated[str, Meta(max_length=MAX_CAUSE, extra=MADE)]
# Types with one regular expression share its description: error messages show it in place of the expression.
UpperName = Annotated[
    str, Meta(pattern=r"^[A-Z0-9_]{1,255}" + END, description="upper-case letters, digits and _")
]
ClassName = Annotated[UpperName, Meta(description="VCPU, MEMORY_MB, CUSTOM_..."), FREE]
TraitName = Annotated[UpperName, Meta(description="HW_CPU_X86_AVX2, CUSTOM_..."), FREE]
WordOrNone = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_-]{0,64}" + END,
        description="a name or nothing: at most 64 letters, digits, _ and -",
    ),
]
Amount = Annotated[int, Meta(ge=1, le=MAX_INT)]
Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
Ordinal = Annotated[int, Meta(ge=0, le=MAX_ORDINAL)]
Whole = Annotated[int, Meta(ge=-MAX_ORDINAL, le=MAX_ORDINAL)]
Number = Annotated[float, Meta(ge=-1e30, le=1e30)]
Weight = Annotated[float, Meta(ge=-1e9, le=1e9)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Ratio = Annotated[float, Meta(ge=-MAX_RATIO, le=MAX_RATIO)]  # the Placement API accepts negative numbers

InstanceId = Annotated[Id, names(INSTANCE_KIND)]
NewInstanceId = Annotated[Id, names_new(INSTANCE_KIND)]
RequestId = Annotated[Id, names(REQUEST_KIND)]
NewRequestId = Annotated[Id, names_new(REQUEST_KIND)]
ProjectId = Annotated[KeystoneId, names(PROJECT_KIND)]
Zone = Annotated[str, Meta(max_length=255), names(ZONE_KIND)]  # empty: no zone
ProjectOrNone = Annotated[Text, names(PROJECT_KIND)]  # empty: no project, or all
UserId = Annotated[KeystoneId, names(USER_KIND)]
HostName = Annotated[Text, names(HOST_KIND)]  # or root; empty: no host
HostRoot = Annotated[Id, names(HOST_KIND)]
ProviderId = Annotated[Id, names(PROVIDER_KIND)]
AggregateId = Annotated[Id, names(AGGREGATE_KIND)]
CellName = Annotated[Word, names(CELL_KIND)]
CellOrNone = Annotated[Text, names(CELL_KIND)]
FreeText = Annotated[Text, FREE]
FreeName = Annotated[Name, FREE]
Note = Annotated[Cause, FREE]  # about a field of a request

# Every list and mapping of a message is bounded: short and small in what clients ask for, long and large in
# reports and answers.
ShortList = Annotated[tuple[T, ...], Meta(max_length=SHORT)]
LongList = Annotated[tuple[T, ...], Meta(max_length=LONG)]
SmallMap = Annotated[dict[K, T], Meta(max_length=SHORT)]
LargeMap = Annotated[dict[K, T], Meta(max_length=LONG)]
Properties = SmallMap[FreeText, PropertyValue]
Mappings = LargeMap[Text, LongList[Text]]  # group suffix → the providers that serve it

Resources = LargeMap[ClassName, Amount]
Allocations = LargeMap[Id, Resources]  # provider → resource class → amount
Shapes = LargeMap[Id, Ordinal]  # provider → the provider's shape when the candidate was found

ReplyTo = Annotated[
    WordOrNone, Meta(description="a name that is added to the routing key of the answer"), FREE
]
Wait = Annotated[
    str,
    Meta(pattern=r"^([0-9]{1,6}(s|m|h|d))?" + END, description="how long: 90s, 30m, 12h, 7d; or nothing"),
    FREE,
]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters; a cut text ends with " ..."."""
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def cause_of(text: str) -> Cause:
    """Return a reason, note or error of any length as a `Cause`."""
    return shortened(text, MAX_CAUSE)


def capacity_of(total: int, reserved: int, allocation_ratio: float) -> int:
    """Return the amount that may be claimed of an inventory, between -MAX_CAPACITY and MAX_CAPACITY."""
    return int(max(min((total - reserved) * allocation_ratio, MAX_CAPACITY), -MAX_CAPACITY))


# Arithmetic of allocations: amounts by provider and resource class.


def totals(allocations: Allocations) -> dict[str, int]:
    """Return the sum of the amounts at all providers, by resource class."""
    found: dict[str, int] = {}
    for resources in allocations.values():
        for name, amount in resources.items():
            found[name] = found.get(name, 0) + amount
    return found


def covers(held: Allocations, wanted: Allocations) -> bool:
    """Return whether `held` has at least the amount in `wanted` for each provider and resource class."""
    return all(
        held.get(provider, {}).get(name, 0) >= amount
        for provider, resources in wanted.items()
        for name, amount in resources.items()
    )


def joined(allocations: Allocations, further: Allocations) -> Allocations:
    """Return the sum of two sets of allocations."""
    both = {provider: dict(resources) for provider, resources in allocations.items()}
    for provider, resources in further.items():
        amounts = both.setdefault(provider, {})
        for name, amount in resources.items():
            amounts[name] = amounts.get(name, 0) + amount
    return both


def without(allocations: Allocations, less: Allocations) -> Allocations:
    """Return allocations reduced by other allocations; amounts below 1 are left out."""
    left: Allocations = {}
    for provider, resources in allocations.items():
        minus = less.get(provider, {})
        amounts = {
            name: amount - minus.get(name, 0)
            for name, amount in resources.items()
            if amount > minus.get(name, 0)
        }
        if amounts:
            left[provider] = amounts
    return left


def common(first: Allocations, second: Allocations) -> Allocations:
    """Return, for each provider and resource class, the smaller of the two amounts; zeros are left out."""
    found: Allocations = {}
    for provider, resources in first.items():
        for name, amount in resources.items():
            if (least := min(amount, second.get(provider, {}).get(name, 0))) > 0:
                found.setdefault(provider, {})[name] = least
    return found


def seconds_of(wait: Wait | None) -> float:
    """Return the number of seconds of a duration such as `30m`; 0 for an empty text or None."""
    return float(int(wait[:-1]) * _UNITS[wait[-1]]) if wait else 0.0


def portions(items: Iterable[T], most: int) -> Iterator[tuple[T, ...]]:
    """Split items into tuples of at most `most` items, for several messages or transactions."""
    listed = tuple(items)
    return (listed[at : at + most] for at in range(0, len(listed), most))


def portions_by_size(items: Sequence[T], size_of: Callable[[T], int], most: int) -> Iterator[Sequence[T]]:
    """Split items into lists with a total size of at most `most` each; a larger item is alone in its list."""
    begin = size = 0
    for position, item in enumerate(items):
        if size and size + size_of(item) > most:
            yield items[begin:position]
            begin, size = position, 0
        size += size_of(item)
    if begin < len(items):
        yield items[begin:]


def page_after(after: str, sizes: Mapping[str, int], most: int) -> tuple[set[str], str]:
    """Return the ids of a page, and the id after which the next page begins ("": this is the last page).

    A page has ids greater than `after` with a total size of at most `most`; a larger object is alone in it.
    """
    page = set[str]()
    size, last = 0, ""
    for id_ in sorted(sizes):
        if id_ > after:
            size += sizes[id_]
            if page and size > most:
                return page, last
            page.add(id_)
            last = id_
    return page, ""


class Value(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The base class of values encoded as JSON objects: fields may be added with defaults, never renamed.

    Values form no reference cycles, so the garbage collector skips them (`gc=False`), which saves a busy
    worker a tenth of its processor time.
    """


class Compact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The base class of values encoded as JSON arrays, for long lists: fields may only be appended."""


class Tagged(Value, frozen=True, kw_only=True, tag_field="is", tag=True):
    """The base class of values encoded with their type's name, because a field may hold several types."""


class Message(Value, frozen=True, kw_only=True):
    """The base class of messages that are published or sent as queries and answers."""


class Missing(Tagged, frozen=True, kw_only=True):
    """The refusal of an edit in placement because an object that the edit names does not exist."""

    what: Literal[
        "provider",
        "parent",
        "resource class",
        "trait",
        "inventory",
        "aggregate",
        "host",
        "cell",
        "resource",
        "reservation",
        "priority class",
    ]
    names: LongList[Text]
    provider: Text = ""  # if an inventory does not exist: its provider


class Taken(Tagged, frozen=True, kw_only=True):
    """The refusal of an edit in placement because another object has this name or id."""

    what: Literal["name", "id", "inventory", "resource class", "priority"]
    value: Text


class InUse(Tagged, frozen=True, kw_only=True):
    """The refusal to edit an object of placement because the object has allocations or members."""

    what: Text  # the type of the object: a provider, class, trait or object of a feature
    classes: LongList[Text] = ()
    members: LongList[Text] = ()  # some of its members


class LimitReached(Tagged, frozen=True, kw_only=True):
    """The refusal to create an object because a limit of the settings would be exceeded."""

    setting: Text
    limit: Count
    what: Cause  # the objects that the setting limits, such as `aggregates`

    def __str__(self) -> str:
        return f"there may be at most {self.limit} {self.what} (setting {self.setting})"


class Contended(Tagged, frozen=True, kw_only=True):
    """The refusal of an edit in placement because concurrent changes won every race; retry the edit."""
