"""Waiting requests to evaluate, and the results of their evaluation."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from bus.decisions import Decision
from bus.vocabulary import Message
from features.moves.core.start import MoveStart
from features.waiting.tables.queued import QueuedRequest

PATIENCE = 1.0  # seconds before a step that failed is repeated
SOON = 0.2


@dataclass(frozen=True, slots=True)
class Woken:
    """A waiting request to evaluate now, and the hosts that it may not use."""

    queued: QueuedRequest
    excluding: frozenset[str]
    swept: bool = False  # True if only the periodic search of all hosts found a host for the request


class Evaluation(Struct, frozen=True):
    """The part of an order that marks the evaluation of a waiting request: the request is stored already."""


class Ended(Struct, frozen=True):
    """The result of an evaluation that ends a waiting request, with the messages to publish."""

    messages: Sequence[Message]


class StillWaiting(Struct, frozen=True):
    """The result of an evaluation in which no host fits a waiting request, with the reason."""

    lacks: str
    decision: Decision
    start: MoveStart | None = None  # for a move: its present data
    wakes_on: str = ""  # key of the commits that may help, if a rule refused the claim


class RetryLater(Struct, frozen=True):
    """The result of an evaluation that failed; it is repeated after `after` seconds, then after twice as
    long.
    """

    after: float
    start: MoveStart | None = None


Evaluated = Ended | StillWaiting | RetryLater
UndoPlaced = Callable[[Any], Awaitable[Message | None]]  # ends a build or move that no conductor receives
Results = Sequence[tuple[QueuedRequest, Evaluated]]
