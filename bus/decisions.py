"""Decisions: why a build was placed on its host or got none, and the data to reproduce that."""

from msgspec import field

from bus.requests import Hints
from bus.vocabulary import Cause, Compact, Id, LargeMap, LongList, Number, Text, TraitName, Value, Whole, Zone


class Removal(Value, frozen=True, kw_only=True):
    """The number of hosts that one constraint removed, and the number left."""

    constraint: Cause
    removed: Whole
    left: Whole
    about: Text = ""  # the field of the request, for programs: cell
    code: Text = ""  # code of the constraint (docs/reasons.md)
    hosts: LongList[Text] = ()  # some of the removed hosts, by name


class NearMiss(Value, frozen=True, kw_only=True):
    """A host that was rejected only narrowly, and what it lacks."""

    host: Text
    lacks: Cause
    code: Text = ""


class RecordedScale(Compact, frozen=True):
    """The scale of one weigher: lowest and highest value of all hosts that fit, and its multiplier."""

    weigher: Text
    multiplier: Number
    lowest: Number
    highest: Number
    clamped: bool = False  # values below the lowest count as the lowest


class RecordedHost(Compact, frozen=True):
    """A host that was weighed, with its value from each weigher in the order of the scales."""

    root: Text
    host: Text
    values: LongList[Number]
    refused: Cause = ""  # the filter that rejected it, and why; empty: it was admitted
    # multipliers that its aggregates override
    multipliers: LargeMap[Text, Number] = field(default_factory=dict)
    # times it was chosen in the same evaluation; among equal scores the lowest number is first
    chosen: Whole = 0
    outside: bool = False  # in another scheduler's share, or unknown: chosen only if no other host is left
    unknown: bool = False  # no heartbeat so far: chosen only if no other host of any share is left


class AlsoAsked(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Demands of a request on the host, in addition to flavor and image."""

    zone: Zone = ""
    cell: Text = ""
    aggregates: LongList[LongList[Id]] = ()
    not_aggregates: LongList[Id] = ()
    hints: Hints | None = None
    forced_host: Text = ""
    wanted_host: Text = ""
    ignore_hosts: LongList[Text] = ()
    preferred_traits: LargeMap[TraitName, Number] = field(default_factory=dict)


class Record(Value, frozen=True, kw_only=True):
    """The data to reproduce a decision: the best hosts, best first, and how they were weighed."""

    flavor: Whole = 0  # 0: the requested flavor; n: number n of or_else
    seed: Text = ""  # breaks ties
    near: Number = 0.0  # scores closer than this are equal
    subset: Whole = 1  # the host was drawn from this many best hosts
    scales: LongList[RecordedScale] = ()
    hosts: LongList[RecordedHost] = ()
    turned_down: LongList[Text] = ()  # roots of better hosts whose claims were refused
    asked: AlsoAsked | None = None  # demands in addition to flavor and image


class Decision(Value, frozen=True, kw_only=True):
    """Why a build was placed on its host, or got none."""

    considered: Whole = 0
    removals: LongList[Removal] = ()
    nearest: LongList[NearMiss] = ()
    scores: LargeMap[Text, Number] = field(default_factory=dict)
    refused: LongList[Cause] = ()  # choices that placement refused before
    code: Text = ""  # no host: code of the reason (docs/reasons.md)
    helps: LongList[Cause] = ()  # changes that would make the request fit
    notes: LongList[Cause] = ()  # parts of the request without effect
    record: Record | None = None
