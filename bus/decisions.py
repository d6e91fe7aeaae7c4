"""Why a build landed where it did, or nowhere, and what that was decided by."""

from msgspec import field

from bus.requests import Hints
from bus.vocabulary import Cause, Compact, Id, LargeMap, LongList, Number, Text, TraitName, Value, Whole, Zone


class Removal(Value, frozen=True, kw_only=True):
    """How many hosts a constraint removed, and how many were left."""

    constraint: Cause
    removed: Whole
    left: Whole
    about: Text = ""  # the field of the request, where programs are to know it: cell
    code: Text = ""  # what kind of constraint it is, for programs (docs/reasons.md)
    hosts: LongList[Text] = ()  # some of the removed hosts, by name


class NearMiss(Value, frozen=True, kw_only=True):
    host: Text
    lacks: Cause
    code: Text = ""


class RecordedScale(Compact, frozen=True):
    """The scale of one weigher: from the lowest to the highest value of all hosts that fit, times a
    multiplier.
    """

    weigher: Text
    multiplier: Number
    lowest: Number
    highest: Number
    clamped: bool = False  # what is below the lowest counts as that


class RecordedHost(Compact, frozen=True):
    """A host that was weighed: the value of each weigher, in the order of the scales."""

    root: Text
    host: Text
    values: LongList[Number]
    refused: Cause = ""  # the rule that did, and why; empty: it was admitted
    # of weighers that its aggregates count otherwise
    multipliers: LargeMap[Text, Number] = field(default_factory=dict)
    # how often it was chosen in the same evaluation: of hosts with equal scores the lowest number is first
    chosen: Whole = 0
    outside: bool = False  # chosen only if no other host is left: of another scheduler's share, or unknown
    unknown: bool = False  # without a heartbeat so far: chosen only if no other host of any share is left


class AlsoAsked(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The demands of a request on the host, beside flavor and image."""

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
    """The data of a decision, from which it can be made again: the best hosts, best first."""

    flavor: Whole = 0  # 0: the flavor asked for; n: the nth of or_else
    seed: Text = ""  # breaks ties
    near: Number = 0.0  # scores no further apart than about this are equal
    subset: Whole = 1  # among how many of the best it was drawn
    scales: LongList[RecordedScale] = ()
    hosts: LongList[RecordedHost] = ()
    turned_down: LongList[Text] = ()  # roots that would have been better, and that placement refused
    asked: AlsoAsked | None = None  # demands beside flavor and image; None: none


class Decision(Value, frozen=True, kw_only=True):
    """Why a build landed where it did, or nowhere."""

    considered: Whole = 0
    removals: LongList[Removal] = ()
    nearest: LongList[NearMiss] = ()
    scores: LargeMap[Text, Number] = field(default_factory=dict)
    refused: LongList[Cause] = ()  # choices placement turned down on the way
    code: Text = ""  # nowhere: why, for programs (docs/reasons.md)
    helps: LongList[Cause] = ()  # what would have made it fit
    notes: LongList[Cause] = ()  # what of the request meant nothing here
    record: Record | None = None
