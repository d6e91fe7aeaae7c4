"""Values that `berth audit check` and `berth audit heal` exchange with features: marks of moves, instances to
record.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bus.delivery.runner import Bus
from bus.messages import Selection
from bus.requests import BuildSpec
from bus.sql.statement import Transaction
from bus.vocabulary import UNSAID_ID, Compact


@dataclass(frozen=True)
class Recording:
    """An instance that a cell shall record as a build: its host, and the allocations that placement has."""

    build: str
    cell: str
    chosen: Selection
    generation: int  # generation of the consumer
    spec: BuildSpec | None = None  # None: a flavor that requests the allocations, and the owner below
    project: str = UNSAID_ID  # of the consumer in placement
    user: str = UNSAID_ID
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


@dataclass(frozen=True)
class AuditPart:
    """Returns a sentence for each violated rule of a feature's data in placement's database."""

    breaches: Callable[[Transaction], Awaitable[list[str]]]


@dataclass(frozen=True)
class CellAuditPart:
    """Reads a feature's records about builds in a cell's database: `marks` those about some builds,
    `released` all builds that have no host now.
    """

    marks: Callable[[Transaction, Collection[str]], Awaitable[dict[str, OperationMark]]]
    released: Callable[[Transaction], Awaitable[dict[str, ReleasedBuild]]]


@dataclass(frozen=True)
class HealingPart:
    """Lets a cell record an instance. `record` gets the bus, the instance, the address for the answer and the
    time limit in seconds; it returns why the cell does not record it, or "".
    """

    record: Callable[[Bus, Recording, str, float], Awaitable[str]]
