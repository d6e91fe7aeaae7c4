"""What may happen to a build: what is heard of it, what placement answered when asked for it, and silence."""

from dataclasses import dataclass

from bus.adoption import BuildAdoptRequested
from bus.claims import ClaimResult, Held, ReleaseResult
from bus.messages import AgentReported, BuildDeleteRequested, BuildPlaced, BuildReshaped
from bus.moves import HandoverTold, MovePlaced, MoveReported, MoveSteered
from cell_conductor.core.build import Status


@dataclass(frozen=True, slots=True)
class SwapAnswered:
    """Placement's word on the swap asked for after this attempt."""

    attempt: int
    result: ClaimResult
    asked_in: str = ""  # what a move `asks`; empty: asked in none


@dataclass(frozen=True, slots=True)
class SwapImpossible:
    """Placement would not even consider it."""

    attempt: int
    why: str
    asked_in: str = ""


@dataclass(frozen=True, slots=True)
class GivenBack:
    """Placement's word on the release asked for in this status."""

    asked_in: Status
    result: ReleaseResult


@dataclass(frozen=True, slots=True)
class CleanedUp:
    """Placement's word on the release of the consumer that kept a leftover's room."""

    consumer: str
    result: ReleaseResult


@dataclass(frozen=True, slots=True)
class MoveImpossible:
    """A move was placed that cannot be done here: it goes back before anything is ordered."""

    placed: MovePlaced
    why: str


@dataclass(frozen=True, slots=True)
class Adoption:
    """What is to be adopted, with placement's word on what it holds; or why it cannot be."""

    asked: BuildAdoptRequested
    held: Held | None = None  # None: its cell knows already
    why: str = ""


@dataclass(frozen=True, slots=True)
class Stalled:
    """The conductor has restarted, or has heard nothing for long: say again what is being waited for."""


Event = (
    BuildPlaced
    | AgentReported
    | BuildDeleteRequested
    | BuildReshaped
    | MovePlaced
    | MoveReported
    | MoveSteered
    | MoveImpossible
    | HandoverTold
    | SwapAnswered
    | SwapImpossible
    | GivenBack
    | CleanedUp
    | Adoption
    | Stalled
)
