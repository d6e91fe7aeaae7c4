"""The extension points of placement: a feature's part has rules for claims and releases (ClaimRule), and rows
of the worker's table. Features import of this package only what this module exports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bus.clock import Clock
from bus.feature import MakesPart, PartNeeds
from bus.sql.database import Database
from bus.worker import WorkerRows
from placement_worker.change_log import ChangeLog
from placement_worker.claim_rule import ClaimRule, ClaimScope
from placement_worker.core.capacity import ClaimWorld, Holder, Unread, roots_of
from placement_worker.core.index import Index
from placement_worker.core.index_rows import Row
from placement_worker.core.reports import wrong_contents
from placement_worker.core.trees import ProviderState, Tree, WorkingTrees, packed, unpacked
from placement_worker.memory import Forgotten, Memory
from placement_worker.store.aggregates import described as describe_aggregates
from placement_worker.store.changes import KEEP as KEEP_CHANGES
from placement_worker.store.changes import (
    LAST_ARCHIVED,
    CommitRecord,
    ProviderNumbers,
    last_number,
    new_rules_edition,
    rules_edition,
)
from placement_worker.store.hosts import IS_SHARING, labels_of
from placement_worker.store.hosts import registered as registered_cells
from placement_worker.store.numbered_names import Book
from placement_worker.store.stored_trees import find as find_trees
from placement_worker.store.stored_trees import homes as homes_of
from placement_worker.store.stored_trees import load as load_trees
from placement_worker.store.stored_trees import read_locked as read_locked_trees
from placement_worker.store.stored_trees import roots_after
from placement_worker.transactions import ClaimOperations, PlacementOperations, again, changing, contended


@dataclass(frozen=True, kw_only=True)
class PlacementNeeds(PartNeeds):
    """The objects from which parts of placement are made."""

    database: Database
    clock: Clock
    book: Book  # the database's ids of classes, traits, projects and other names
    log: ChangeLog  # numbers each commit, applies it to the index and publishes it
    numbers: ProviderNumbers

    @classmethod
    def over(
        cls, database: Database, clock: Clock, memory: Memory, *, keep_changes: int = KEEP_CHANGES
    ) -> PlacementNeeds:
        """Return what parts need for a placement with this database. `memory`: holds its index.
        `keep_changes`: the number of latest commits to keep in the change log.
        """
        book = Book()
        log, numbers = ChangeLog(database, book, clock, memory, keep_changes), ProviderNumbers(database)
        return cls(database=database, clock=clock, book=book, log=log, numbers=numbers)

    @property
    def operations(self) -> tuple[Database, Clock, Book, ChangeLog, ProviderNumbers]:
        """Return the first arguments of a subclass of PlacementOperations."""
        return self.database, self.clock, self.book, self.log, self.numbers


class OpenPlacement(Protocol):
    """The placement of a worker, as the rows of parts use it."""

    claims: ClaimOperations
    keep: float  # seconds for which retired consumers and records are kept

    def oldest_kept(self) -> float:
        """Return the time since when retired consumers and records are kept; older ones are deleted."""


def _no_rows(placement: OpenPlacement) -> WorkerRows:
    return WorkerRows()


@dataclass(frozen=True, kw_only=True)
class PlacementPart:
    """A feature's part of placement."""

    rules: Sequence[ClaimRule] = ()  # in the order in which they judge
    # tables of objects whose ids no request may use: table with a column `uuid` → SQL of the project of an
    # object, "''" if no client may use the id
    objects: Mapping[str, str] = field(default_factory=dict)
    offers: tuple[object, ...] = ()  # for the parts of features that need this one
    rows: Callable[[OpenPlacement], WorkerRows] = _no_rows  # its rows of the worker's table


class ForPlacement(MakesPart[PlacementNeeds, PlacementPart]):
    """The value PART of a feature's module `placement`."""
