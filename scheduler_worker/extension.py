"""The names of the scheduler that features may import, and what a scheduler gives to their parts.

A feature extends the scheduler by the purposes of orders, and by a `SchedulerPart` with narrowings and
fallbacks. The kernel calls a narrowing with the orders that it `concerns`; a plain boot is concerned by none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bus.feature import PartNeeds
from bus.sql.database import Database
from scheduler_worker.core.build_purpose import BUILD, BuildPurpose
from scheduler_worker.core.events import Chosen, ComeAgain, TakenOver
from scheduler_worker.core.narrowing import (
    PLAIN,
    ClaimPart,
    HostLimit,
    JointChoice,
    Narrowing,
    NoNarrowing,
    Remedies,
    Scope,
)
from scheduler_worker.core.order import EndedInstance, Order, Purpose, Settled
from scheduler_worker.core.rule import Alternative
from scheduler_worker.dependencies import HeldAllocations, Publish, SchedulerOptions
from scheduler_worker.placing import Fallback, FallbackAnswer, Scheduler, SchedulerPart
from scheduler_worker.queries import CellQueries

__all__ = [
    "BUILD",
    "PLAIN",
    "Alternative",
    "BuildPurpose",
    "CellQueries",
    "Chosen",
    "ClaimPart",
    "ComeAgain",
    "EndedInstance",
    "Fallback",
    "FallbackAnswer",
    "HeldAllocations",
    "HostLimit",
    "JointChoice",
    "Narrowing",
    "NoNarrowing",
    "Order",
    "PartsOf",
    "Purpose",
    "Remedies",
    "Scheduler",
    "SchedulerNeeds",
    "SchedulerPart",
    "Scope",
    "Settled",
    "TakenOver",
]


@dataclass(frozen=True, kw_only=True)
class SchedulerNeeds(PartNeeds):
    """The objects that a scheduler gives to the parts of features. Until all parts were made, a part only
    reads the attributes of `scheduler`.
    """

    scheduler: Scheduler
    cells: CellQueries
    database: Database
    publish: Publish
    options: SchedulerOptions


PartsOf = Callable[[SchedulerNeeds], Sequence[SchedulerPart]]  # returns the parts in the order of their list
