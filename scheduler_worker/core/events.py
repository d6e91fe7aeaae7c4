"""What happens to an order, and what is to be done about it: values, carried out by the shell."""

from collections.abc import Mapping
from dataclasses import dataclass

from bus.messages import BuildPlaced, BuildUnplaceable
from bus.vocabulary import Candidate, ClaimResult, ConsumerClaim, Held, Id, ReleaseResult
from scheduler_worker.core.held import ClaimPlace
from scheduler_worker.core.pick import Pick
from scheduler_worker.core.shortage import Shortage

# Events


@dataclass(frozen=True, slots=True)
class Begun:
    """It came in. `refusal`: what is wrong with it, so that it can have no host."""

    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Hosts for as many of its instances as there is room for, which is enough. They are promised."""

    picks: tuple[Pick, ...]
    short: Shortage | None = None  # why not for all


@dataclass(frozen=True, slots=True)
class NoHost:
    """Not for enough of its instances, so nothing is promised."""

    short: Shortage


@dataclass(frozen=True, slots=True)
class ClaimAnswers:
    """What placement said to each of the claims."""

    results: tuple[ClaimResult, ...]


@dataclass(frozen=True, slots=True)
class ClaimImpossible:
    """Placement cannot take such a claim."""

    why: str


@dataclass(frozen=True, slots=True)
class Located:
    """Where what is held is built; None: no agent builds there."""

    places: Mapping[Id, ClaimPlace | None]


@dataclass(frozen=True, slots=True)
class FenceAnswers:
    results: tuple[tuple[Id, ReleaseResult], ...]


@dataclass(frozen=True, slots=True)
class FenceImpossible:
    why: str


@dataclass(frozen=True, slots=True)
class SparesFound:
    """Hosts to name as alternates, for each instance that lacked some."""

    spares: Mapping[Id, tuple[Candidate, ...]]


Event = (
    Begun
    | Chosen
    | NoHost
    | ClaimAnswers
    | ClaimImpossible
    | Located
    | FenceAnswers
    | FenceImpossible
    | SparesFound
)

# Effects that an event answers


@dataclass(frozen=True, slots=True)
class LookForHosts:
    """By the wish it is at, for all its instances that have none: Chosen or NoHost."""


@dataclass(frozen=True, slots=True)
class ClaimHosts:
    claims: tuple[ConsumerClaim, ...]


@dataclass(frozen=True, slots=True)
class Locate:
    held: tuple[tuple[Id, Held], ...]


@dataclass(frozen=True, slots=True)
class Fence:
    """It is never to hold anything again, and gives back what it held at this generation.

    None gives nothing back: who holds a host keeps it. All fences of an order are answered together.
    """

    instance: Id
    generation: int | None
    why: str


@dataclass(frozen=True, slots=True)
class LookForSpares:
    """So many hosts of this cell, of which no instance of the request is: all are answered together."""

    instance: Id
    cell: str
    several: int
    beside: frozenset[str]
    nth: int  # the wish they must meet


# Effects that are done and forgotten


@dataclass(frozen=True, slots=True)
class KeepHost:
    """The pick was claimed, this way: it counts as used until placement shows the change."""

    pick: Pick
    way: Candidate
    number: int


@dataclass(frozen=True, slots=True)
class GiveUpHost:
    """What was promised for it is free again."""

    pick: Pick


@dataclass(frozen=True, slots=True)
class Warn:
    text: str


# Ends


@dataclass(frozen=True, slots=True)
class SayAll:
    """All is said of it."""

    messages: tuple[BuildPlaced | BuildUnplaceable, ...]


@dataclass(frozen=True, slots=True)
class ComeAgain:
    """It is to come again after so many seconds, drawn from least to most."""

    least: float
    most: float
    why: str


@dataclass(frozen=True, slots=True)
class Park:
    """It waits for room, for as long as it said."""

    shorts: tuple[Shortage, ...]  # what it lacks, by each of its wishes
    why: str


@dataclass(frozen=True, slots=True)
class Bury:
    """Nothing can be done with it."""

    why: str


End = SayAll | ComeAgain | Park | Bury
Effect = LookForHosts | ClaimHosts | Locate | Fence | LookForSpares | KeepHost | GiveUpHost | Warn | End
Effects = tuple[Effect, ...]
