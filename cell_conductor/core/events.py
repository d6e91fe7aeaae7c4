"""The events that change a build (messages, placement's answers, silence), and the limits of attempts."""

from collections.abc import Collection
from typing import Any

from msgspec import Struct

from bus.claims import ClaimResult, ReleaseResult
from bus.messages import AgentReported, BuildDeleteRequested, BuildEndRequested, BuildPlaced, BuildReshaped
from bus.vocabulary import KEEP_SECONDS
from cell_conductor.core.build import BuildParts, Status


class SwapAnswered(Struct, frozen=True):
    """The event that placement answered the claim of a build's next host, which followed a failed attempt."""

    attempt: int
    result: ClaimResult | str  # a text is the reason why placement could not process the claim
    parts: BuildParts = (
        BuildParts()
    )  # the build's parts when it asked: courses recognize late answers by them


class ReleaseAnswer(Struct, frozen=True):
    """The event that placement answered a build's request to release its allocations. `asked_in` is the
    status in which the build sent the request.
    """

    asked_in: Status
    result: ReleaseResult


class CleanedUp(Struct, frozen=True):
    """The event that placement answered the request to release the resources that the holder consumer
    `consumer` holds for a guest left behind.
    """

    consumer: str
    result: ReleaseResult


class Stalled(Struct, frozen=True):
    """The event that the conductor restarted or an agent is silent: unanswered messages are sent again, and
    orders to destroy guests left behind on the hosts `roots`; None: on all hosts.
    """

    roots: Collection[str] | None = ()


KernelEvent = (
    BuildPlaced
    | AgentReported
    | BuildDeleteRequested
    | BuildEndRequested
    | BuildReshaped
    | SwapAnswered
    | ReleaseAnswer
    | CleanedUp
    | Stalled
)
Event = KernelEvent | Any  # or an event of a course


class AttemptLimits(Struct, frozen=True):
    """The most attempts of a build, and the time limits of builds, agents and records, in seconds."""

    max_attempts: int = 3
    build_timeout: float = 1800.0
    delete_timeout: float = 600.0  # seconds after which a build is deleted without its agent's confirmation
    # seconds after which resources of a guest left behind are released anyway
    cleanup_timeout: float = 86400.0
    poll_every: float = 5.0  # seconds between checks for exceeded time limits
    stalled_after: float = 60.0  # seconds without an answer after which a message is repeated
    # seconds without an answer after which two messages are repeated: the order to destroy a guest left
    # behind by an ended build, and the request to place a replaced build again
    destroy_again_after: float = 3600.0
    keep: float = KEEP_SECONDS  # seconds for which the records of ended builds and moves are stored
