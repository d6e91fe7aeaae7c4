"""What happens to an order, and what is to be done about it: values, carried out by the shell."""

from collections.abc import Mapping

import msgspec

from bus.claims import ClaimResult, ConsumerClaim, Held, ReleaseResult
from bus.messages import BuildPlaced, BuildUnplaceable
from bus.moves import MovePlaced, MoveRefused
from bus.queries import Candidate
from bus.vocabulary import Id
from scheduler_worker.core.held import ClaimPlace
from scheduler_worker.core.pick import Pick
from scheduler_worker.core.shortage import Shortage

# Events


class Begun(msgspec.Struct, frozen=True, gc=False):
    """It came in. `refusal`: what is wrong with it, so that it can have no host."""

    refusal: str = ""


class Chosen(msgspec.Struct, frozen=True, gc=False):
    """Hosts for as many of its instances as there is room for, which is enough. They are promised."""

    picks: tuple[Pick, ...]
    short: Shortage | None = None  # why not for all


class NoHost(msgspec.Struct, frozen=True, gc=False):
    """Not for enough of its instances, so nothing is promised."""

    short: Shortage


class ClaimAnswers(msgspec.Struct, frozen=True, gc=False):
    """What placement said to each of the claims."""

    results: tuple[ClaimResult, ...]


class ClaimImpossible(msgspec.Struct, frozen=True, gc=False):
    """Placement cannot take such a claim."""

    why: str


class Located(msgspec.Struct, frozen=True, gc=False):
    """Where what is held is built; None: no agent builds there."""

    places: Mapping[Id, ClaimPlace | None]


class FenceAnswers(msgspec.Struct, frozen=True, gc=False):
    results: tuple[tuple[Id, ReleaseResult], ...]


class FenceImpossible(msgspec.Struct, frozen=True, gc=False):
    why: str


class SparesFound(msgspec.Struct, frozen=True, gc=False):
    """Hosts to name as alternates, for each instance that lacked some."""

    spares: Mapping[Id, tuple[Candidate, ...]]


class HelpFound(msgspec.Struct, frozen=True, gc=False):
    """What would have made it fit; nothing, where nothing by itself would."""

    helps: tuple[str, ...] = ()


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
    | HelpFound
)

# Effects that an event answers


class LookForHosts(msgspec.Struct, frozen=True, gc=False):
    """By the wish it is at, for all its instances that have none: Chosen or NoHost."""


class ClaimHosts(msgspec.Struct, frozen=True, gc=False):
    claims: tuple[ConsumerClaim, ...]


class Locate(msgspec.Struct, frozen=True, gc=False):
    held: tuple[tuple[Id, Held], ...]


class Fence(msgspec.Struct, frozen=True, gc=False):
    """It is never to hold anything again, and gives back what it held at this generation.

    None gives nothing back: who holds a host keeps it. All fences of an order are answered together.
    """

    instance: Id
    generation: int | None
    why: str


class LookForSpares(msgspec.Struct, frozen=True, gc=False):
    """So many hosts of this cell, of which no instance of the request is: all are answered together."""

    instance: Id
    cell: str
    several: int
    beside: frozenset[str]
    nth: int  # the wish they must meet


class LookForHelp(msgspec.Struct, frozen=True, gc=False):
    """It has no host for good: what would have made it fit?"""


# Effects that are done and forgotten


class KeepHost(msgspec.Struct, frozen=True, gc=False):
    """The pick was claimed, this way: it counts as used until placement shows the change."""

    pick: Pick
    way: Candidate
    number: int
    instance: Id


class GiveUpHost(msgspec.Struct, frozen=True, gc=False):
    """What was promised for it is free again."""

    pick: Pick
    instance: Id


class Warn(msgspec.Struct, frozen=True, gc=False):
    text: str


# Ends


class SayAll(msgspec.Struct, frozen=True, gc=False):
    """All is said of it."""

    messages: tuple[BuildPlaced | BuildUnplaceable, ...]


class SayMove(msgspec.Struct, frozen=True, gc=False):
    """What has become of a move."""

    message: MovePlaced | MoveRefused


class BegunBefore(msgspec.Struct, frozen=True, gc=False):
    """It is a move that has its claim already: what it holds is to be looked at, and told again."""


class ComeAgain(msgspec.Struct, frozen=True, gc=False):
    """It is to come again after so many seconds, drawn from least to most."""

    least: float
    most: float
    why: str


class Park(msgspec.Struct, frozen=True, gc=False):
    """It waits for room, for as long as it said."""

    shorts: tuple[Shortage, ...]  # what it lacks, by each of its wishes
    why: str


class Bury(msgspec.Struct, frozen=True, gc=False):
    """Nothing can be done with it."""

    why: str


End = SayAll | SayMove | BegunBefore | ComeAgain | Park | Bury
Effect = (
    LookForHosts
    | ClaimHosts
    | Locate
    | Fence
    | LookForSpares
    | LookForHelp
    | KeepHost
    | GiveUpHost
    | Warn
    | End
)
Effects = tuple[Effect, ...]
