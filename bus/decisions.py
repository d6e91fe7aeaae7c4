"""Why a build landed where it did, or nowhere, and what that was decided by."""

from msgspec import field

from bus.requests import Hints
from bus.vocabulary import Compact, Id, TraitName, Value, Zone


class Removal(Value, frozen=True, kw_only=True):
    """How many hosts a constraint took out of the running, and how many it left."""

    constraint: str
    removed: int
    left: int
    about: str = ""  # the field of the request, where programs are to know it: cell
    code: str = ""  # what kind of constraint it is, for programs (docs/reasons.md)
    hosts: tuple[str, ...] = ()  # some of those it removed, by name


class NearMiss(Value, frozen=True, kw_only=True):
    host: str
    lacks: str
    code: str = ""


class RecordedScale(Compact, frozen=True):
    """How one weigher counted: its values run from lowest to highest of all that fit, times a multiplier."""

    weigher: str
    multiplier: float
    lowest: float
    highest: float
    clamped: bool = False  # what is below the lowest counts as that


class RecordedHost(Compact, frozen=True):
    """A host that was looked at: what each weigher read there, in the order of the scales."""

    root: str
    host: str
    values: tuple[float, ...]
    refused: str = ""  # the rule that did, and why; empty: it was admitted
    # of weighers that its aggregates count otherwise
    multipliers: dict[str, float] = field(default_factory=dict)
    chosen: int = 0  # how often others had got it by the same evaluation: of equals the least comes first
    outside: bool = False  # another scheduler looks at it first: it comes after all that are not


class AlsoAsked(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What a request asked of the host beside what is built."""

    zone: Zone = ""
    cell: str = ""
    aggregates: tuple[tuple[Id, ...], ...] = ()
    not_aggregates: tuple[Id, ...] = ()
    hints: Hints | None = None
    forced_host: str = ""
    wanted_host: str = ""
    ignore_hosts: tuple[str, ...] = ()
    preferred_traits: dict[TraitName, float] = field(default_factory=dict)


class Record(Value, frozen=True, kw_only=True):
    """What a decision was made by, so that it can be made again: the best hosts, best first."""

    flavor: int = 0  # 0: the flavor asked for; n: the nth of or_else
    seed: str = ""  # breaks ties
    near: float = 0.0  # scores no further apart than about this are equal
    subset: int = 1  # among how many of the best it was drawn
    scales: tuple[RecordedScale, ...] = ()
    hosts: tuple[RecordedHost, ...] = ()
    turned_down: tuple[str, ...] = ()  # roots that would have been better, and that placement refused
    asked: AlsoAsked | None = None  # beside what is built, to ask again; None: nothing


class Decision(Value, frozen=True, kw_only=True):
    """Why a build landed where it did, or nowhere."""

    considered: int = 0
    removals: tuple[Removal, ...] = ()
    nearest: tuple[NearMiss, ...] = ()
    scores: dict[str, float] = field(default_factory=dict)
    refused: tuple[str, ...] = ()  # choices placement turned down on the way
    code: str = ""  # nowhere: why, for programs (docs/reasons.md)
    helps: tuple[str, ...] = ()  # what would have made it fit
    notes: tuple[str, ...] = ()  # what of the request meant nothing here
    record: Record | None = None
