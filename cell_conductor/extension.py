"""The names of the conductor that features may import, and the Protocols that a feature's part implements."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bus.clock import Clock
from bus.feature import MakesPart, PartNeeds
from bus.sql.database import Database
from bus.sql.statement import Transaction
from bus.topics import Topic
from bus.worker import Outcome, WorkerRows
from cell_conductor.build_claims import BuildClaims
from cell_conductor.core import build as builds
from cell_conductor.core import events, leftovers
from cell_conductor.core.answers import (
    holds_instead,
    is_stale,
    position_of,
    reshaped,
    swap_result,
    with_allocations,
)
from cell_conductor.core.build import Build, BuildParts, Effects, Leftover, Status, Stepped
from cell_conductor.core.events import AttemptLimits, Event
from cell_conductor.core.step import Course, CourseStands, HeldStatuses, Postponed, Step
from cell_conductor.node_sharing import NodeSharing
from cell_conductor.removed_agents import EndedOrders
from cell_conductor.store import Applied, CourseStore, left_behind

Prune = Callable[[Transaction, float, int], Awaitable[int]]  # deletes some records that ended before a time


class CellBuilds(Protocol):
    """The builds of a cell, as the handlers of features use them."""

    database: Database
    clock: Clock
    placement: BuildClaims
    # Topics of all messages of builds. Every row whose messages are events of builds declares them: a course
    # may have any build, and repeats after any event the messages that others wait for.
    effects: Sequence[Topic[Any]]
    repeated: Sequence[Topic[Any]]  # topics of the messages that timers repeat

    async def load(self, ids: Collection[str]) -> dict[str, Build]:
        """Return the cell's records of builds by id."""

    async def on_shared_nodes(self, builds: Collection[Build]) -> set[str]:
        """Return the ids of those placed builds whose host is a node that agents share."""

    async def apply(self, events: Sequence[tuple[str, Event]]) -> Sequence[Outcome]:
        """Apply events to builds; return messages, with each order addressed to the node's present agent."""

    async def receive_many(self, messages: Sequence[Any]) -> Sequence[Outcome]:
        """Apply messages about builds, each with the field `build`."""

    async def remind(self, roots: Collection[str]) -> Sequence[Any]:
        """Return again the unanswered orders about guests on the given root providers."""


def _no_rows(builds: CellBuilds) -> WorkerRows:
    return WorkerRows()


@dataclass(frozen=True, kw_only=True)
class ConductorNeeds(PartNeeds):
    """The objects from which a feature makes its part of the conductor of a cell."""

    cell: str


@dataclass(frozen=True, kw_only=True)
class ConductorPart:
    """A feature's part of the conductor of a cell."""

    courses: tuple[Course, ...] = ()  # in the order in which they are asked
    # rows that its courses read and write in the transaction of their builds
    stores: tuple[CourseStore, ...] = ()
    prunes: tuple[Prune, ...] = ()  # called when the conductor deletes old builds
    effects: tuple[Topic[Any], ...] = ()  # topics of messages of its courses
    ended_orders: tuple[EndedOrders, ...] = ()  # how its orders for removed agents end
    repeats: tuple[Topic[Any], ...] = ()  # those of `effects` that timers publish until they are answered
    offers: tuple[object, ...] = ()  # objects for the features that need this one
    sharing: Callable[[CellBuilds], NodeSharing] | None = None  # at most one feature has it
    rows: Callable[[CellBuilds], WorkerRows] = _no_rows  # makes its rows in the conductor's table


class ForConductor(MakesPart[ConductorNeeds, ConductorPart]):
    """The value PART of a feature's module `conductor`."""
