"""Values that `berth audit` and `berth heal` exchange with features: marks of moves, instances to record."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bus.messages import Selection
from bus.requests import BuildSpec
from bus.sql.statement import Transaction
from bus.vocabulary import Compact


@dataclass(frozen=True)
class Recording:
    """An instance that a cell shall record as a build: its host, and the allocations that placement has."""

    build: str
    cell: str
    chosen: Selection
    generation: int  # generation of the consumer
    spec: BuildSpec | None = None  # None: a flavor that requests the allocations
    attempt: int = 1  # attempt number of the guest


class OperationMark(NamedTuple):
    """The record of a feature about a build that it moves, or has moved."""

    operating: bool = False  # the build is in an operation of the feature, whatever its status is
    came: bool = False  # the build came from another cell, which may know of further attempts
    left: bool = False  # the build is in another cell


ReadMarks = Callable[[Transaction, Collection[str]], Awaitable[Mapping[str, OperationMark]]]


class ReleasedBuild(Compact, frozen=True):
    """The last attempt of a build that a feature has without a host, such as a shelved one, and when its host
    was released: `ended`, or 0.0 if that is unknown.
    """

    attempt: int
    ended: float
