"""Why a build landed where it did, or nowhere, and what that was decided by."""

from msgspec import field

from bus.requests import Hints
from bus.vocabulary import Cause, Compact, Id, LargeMap, LongList, Number, Text, TraitName, Value, Whole, Zone


class Removal(Value, frozen=True, kw_only=True):
    """How many hosts a constraint took out of the running, and how many it left."""

    constraint: Cause
    removed: Whole
    left: Whole
    about: Text = ""  # the field of the request, where programs are to know it: cell
    code: Text = ""  # what kind of constraint it is, for programs (docs/reasons.md)
    hosts: LongList[Text] = ()  # some of those it removed, by name


class NearMiss(Value, frozen=True, kw_only=True):
    host: Text
    lacks: Cause
    code: Text = ""


class RecordedScale(Compact, frozen=True):
    """How one weigher counted: its values run from lowest to highest of all that fit, times a multiplier."""

    weigher: Text
    multiplier: Number
    lowest: Number
    highest: Number
    clamped: bool = False  # what is below the lowest counts as that


class RecordedHost(Compact, frozen=True):
    """A host that was looked at: what each weigher read there, in the order of the scales."""

    root: Text
    host: Text
    values: LongList[Number]
    refused: Cause = ""  # the rule that did, and why; empty: it was admitted
    # of weighers that its aggregates count otherwise
    multipliers: LargeMap[Text, Number] = field(default_factory=dict)
    chosen: Whole = 0  # how often others had got it by the same evaluation: of equals the least comes first
    outside: bool = False  # chosen only if no other host is left: of another scheduler's share, or unknown
    unknown: bool = False  # without a heartbeat so far: chosen only if no other host of any share is left


class AlsoAsked(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What a request asked of the host beside what is built."""

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
    """What a decision was made by, so that it can be made again: the best hosts, best first."""

    flavor: Whole = 0  # 0: the flavor asked for; n: the nth of or_else
    seed: Text = ""  # breaks ties
    near: Number = 0.0  # scores no further apart than about this are equal
    subset: Whole = 1  # among how many of the best it was drawn
    scales: LongList[RecordedScale] = ()
    hosts: LongList[RecordedHost] = ()
    turned_down: LongList[Text] = ()  # roots that would have been better, and that placement refused
    asked: AlsoAsked | None = None  # beside what is built, to ask again; None: nothing


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
