"""The events that change the state of an order, and the effects that the worker executes for it."""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import msgspec

from bus.claims import ClaimResult, ReleaseResult
from bus.queries import Candidate, FindCandidates
from bus.resources import Provider
from bus.vocabulary import Allocations, Id, Mappings, Message
from scheduler_worker.core.ranking import Pick
from scheduler_worker.core.rule import ClaimPart
from scheduler_worker.core.shortage import Shortage

# Events


class Started(msgspec.Struct, frozen=True, gc=False):
    """The event that an order was made from its request."""


class Chosen(msgspec.Struct, frozen=True, gc=False):
    """The event after a search of hosts: the host chosen for each instance, or why too few hosts fit."""

    picks: tuple[Pick, ...] = ()  # empty: too few hosts were found
    short: Shortage | None = None  # why some instances have no host
    attempt: int | None = None  # the attempt that the chosen hosts are for; None: the current one


class Passed(msgspec.Struct, frozen=True, gc=False):
    """The event that no fallback has a host for an order, or handles it."""


class ClaimAnswers(msgspec.Struct, frozen=True, gc=False):
    """The event with placement's answers to the claims of an order, in the order of the claims."""

    results: tuple[ClaimResult, ...]


class ClaimImpossible(msgspec.Struct, frozen=True, gc=False):
    """The event that placement refused to process the claims, for example because they are invalid."""

    why: str


class Located(msgspec.Struct, frozen=True, gc=False):
    """The event after a lookup of the providers that instances have allocations of."""

    providers: Mapping[Id, Provider]
    mappings: Callable[[FindCandidates, Id, Allocations], Mappings]  # as `choosing.mappings_of`
    # instance → what features add to the messages about it
    parts: Mapping[Id, tuple[ClaimPart, ...]] = {}


class FenceAnswers(msgspec.Struct, frozen=True, gc=False):
    """The event with placement's answers to the retirement of instances without a host, which can claim
    nothing afterwards.
    """

    results: tuple[tuple[Id, ReleaseResult], ...]


class FenceImpossible(msgspec.Struct, frozen=True, gc=False):
    """The event that placement refused to process the retirement of instances: the request becomes a dead
    letter.
    """

    why: str


class AlternatesFound(msgspec.Struct, frozen=True, gc=False):
    """The event with the alternates of placed instances: hosts to which the cell moves a build that fails."""

    alternates: Mapping[Id, tuple[Candidate, ...]]


class HelpFound(msgspec.Struct, frozen=True, gc=False):
    """The event after a search for suggestions: changes with which the request would fit, if any."""

    helps: tuple[str, ...] = ()


Event = (
    Started
    | Chosen
    | ClaimAnswers
    | ClaimImpossible
    | Located
    | FenceAnswers
    | FenceImpossible
    | AlternatesFound
    | HelpFound
    | Passed
)

# Effects that an event answers


class Need(Enum):
    """The data or action that the placing of a request requires next; the worker answers with an event."""

    HOSTS = "hosts for all instances without one, by the current flavor: answered by Chosen"
    FALLBACKS = "a feature that helps an order without a host: answered by Chosen, Passed or TakenOver"
    CLAIMS = "claims of the picked hosts: answered by ClaimAnswers or ClaimImpossible"
    PLACES = "the hosts of existing allocations: answered by Located"
    FENCES = "consumers to be retired: answered by FenceAnswers or FenceImpossible"
    ALTERNATES = "other hosts in the cells of the claimed hosts: answered by AlternatesFound"
    REMEDIES = "changes that would make the request fit: answered by HelpFound"


class Fence(msgspec.Struct, frozen=True, gc=False):
    """A consumer to retire, so that its later claims fail; its allocations are released.

    Allocations of another generation than the given one are not released. With generation None, a consumer
    that has allocations is not retired.
    """

    instance: Id
    generation: int | None
    why: str


# Effects without an answer


class ReserveHost(msgspec.Struct, frozen=True, gc=False):
    """The effect to withhold a claimed host's resources in memory until placement's index shows the claim."""

    pick: Pick
    way: Candidate  # the claimed candidate, which may be another than the first choice
    number: int  # change number of the claim
    instance: Id


class ReleaseHost(msgspec.Struct, frozen=True, gc=False):
    """The effect to release the reservation of a chosen host, because the instance does not use it."""

    pick: Pick
    instance: Id


class Warn(msgspec.Struct, frozen=True, gc=False):
    """The effect to log a warning."""

    text: str


# Ends


class Publish(msgspec.Struct, frozen=True, gc=False):
    """The effect to publish the messages that end the order."""

    messages: tuple[Message, ...]


class ComeAgain(msgspec.Struct, frozen=True, gc=False):
    """The effect to deliver the request's message again after a random delay in seconds."""

    least: float
    most: float
    why: str


class TakenOver(msgspec.Struct, frozen=True, gc=False):
    """The effect that a fallback handles the order from now on. `state` belongs to the feature; `messages`
    are published now.
    """

    state: Any
    messages: tuple[Message, ...] = ()


class DeadLetterRequest(msgspec.Struct, frozen=True, gc=False):
    """The effect to move the request's message to the dead-letter queue, because it can never be handled."""

    why: str


End = Publish | ComeAgain | TakenOver | DeadLetterRequest
Effect = Need | ReserveHost | ReleaseHost | Warn | End
Effects = tuple[Effect, ...]
