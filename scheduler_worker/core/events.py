"""Events of an order, and the effects that the shell carries out."""

from collections.abc import Mapping

import msgspec

from bus.claims import ClaimResult, ConsumerClaim, Held, ReleaseResult
from bus.messages import BuildPlaced, BuildUnplaceable
from bus.moves import MovePlaced, MoveRefused
from bus.queries import Candidate
from bus.vocabulary import Id
from scheduler_worker.core.choice import Pick
from scheduler_worker.core.held_claim import ClaimPlace
from scheduler_worker.core.shortage import Shortage

# Events


class Begun(msgspec.Struct, frozen=True, gc=False):
    """The order was received. `refusal`: why it cannot have a host."""

    refusal: str = ""


class Chosen(msgspec.Struct, frozen=True, gc=False):
    """Hosts for as many of its instances as there is room for, which is enough. They are promised."""

    picks: tuple[Pick, ...]
    short: Shortage | None = None  # why not for all


class NoHost(msgspec.Struct, frozen=True, gc=False):
    """Not for enough of its instances, so nothing is promised."""

    short: Shortage


class ClaimAnswers(msgspec.Struct, frozen=True, gc=False):
    """Placement's answer to each claim."""

    results: tuple[ClaimResult, ...]


class ClaimImpossible(msgspec.Struct, frozen=True, gc=False):
    """Placement cannot take such a claim."""

    why: str


class Located(msgspec.Struct, frozen=True, gc=False):
    """The host of existing allocations, or None if no agent builds on it."""

    places: Mapping[Id, ClaimPlace | None]


class FenceAnswers(msgspec.Struct, frozen=True, gc=False):
    results: tuple[tuple[Id, ReleaseResult], ...]


class FenceImpossible(msgspec.Struct, frozen=True, gc=False):
    why: str


class AlternatesFound(msgspec.Struct, frozen=True, gc=False):
    """Hosts to name as alternates, for each instance that lacked some."""

    spares: Mapping[Id, tuple[Candidate, ...]]


class HelpFound(msgspec.Struct, frozen=True, gc=False):
    """Changes of the request that would make it fit; empty: no single change does."""

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
    | AlternatesFound
    | HelpFound
)

# Effects that an event answers


class FindHosts(msgspec.Struct, frozen=True, gc=False):
    """Choose hosts by its current alternative for all instances without one: Chosen or NoHost."""


class ClaimHosts(msgspec.Struct, frozen=True, gc=False):
    claims: tuple[ConsumerClaim, ...]


class Locate(msgspec.Struct, frozen=True, gc=False):
    held: tuple[tuple[Id, Held], ...]


class Fence(msgspec.Struct, frozen=True, gc=False):
    """Retire a consumer: release its allocations at this generation, so that no later claim of it succeeds.

    With generation None a consumer that holds a host keeps it. All fences of an order are answered together.
    """

    instance: Id
    generation: int | None
    why: str


class FindAlternates(msgspec.Struct, frozen=True, gc=False):
    """Find this number of other hosts in the cell; all alternates of an order are answered together."""

    instance: Id
    cell: str
    several: int
    beside: frozenset[str]
    alternative_index: int  # of the alternative they must meet


class FindRemedies(msgspec.Struct, frozen=True, gc=False):
    """Find changes that would make the request fit, because no host does."""


# Effects that are done and forgotten


class KeepHost(msgspec.Struct, frozen=True, gc=False):
    """The pick was claimed, this way: it counts as used until placement shows the change."""

    pick: Pick
    way: Candidate
    number: int
    instance: Id


class GiveUpHost(msgspec.Struct, frozen=True, gc=False):
    """Free the reservation that was made for it."""

    pick: Pick
    instance: Id


class Warn(msgspec.Struct, frozen=True, gc=False):
    text: str


# Ends


class SayAll(msgspec.Struct, frozen=True, gc=False):
    """Publish all results of the order."""

    messages: tuple[BuildPlaced | BuildUnplaceable, ...]


class SayMove(msgspec.Struct, frozen=True, gc=False):
    """Publish the result of a move."""

    message: MovePlaced | MoveRefused


class BegunBefore(msgspec.Struct, frozen=True, gc=False):
    """The move has its claim already: read its allocations, and publish the result again."""


class ComeAgain(msgspec.Struct, frozen=True, gc=False):
    """Deliver the message again after a random time between least and most."""

    least: float
    most: float
    why: str


class Park(msgspec.Struct, frozen=True, gc=False):
    """Let it wait for free capacity, for the time that it allows."""

    shorts: tuple[Shortage, ...]  # what it lacks, by each of its alternatives
    why: str


class DeadLetterRequest(msgspec.Struct, frozen=True, gc=False):
    """Nothing can be done with it."""

    why: str


End = SayAll | SayMove | BegunBefore | ComeAgain | Park | DeadLetterRequest
Effect = (
    FindHosts
    | ClaimHosts
    | Locate
    | Fence
    | FindAlternates
    | FindRemedies
    | KeepHost
    | GiveUpHost
    | Warn
    | End
)
Effects = tuple[Effect, ...]
