"""What features may import of the conductor, and the Protocols that a feature's part implements."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from bus.sql.statement import BoundStatement
from bus.sql.transaction import Transaction
from cell_conductor.core.build import Build, Effects
from cell_conductor.core.events import Event


class Applied(NamedTuple):
    """An event that was applied to a build."""

    event: Event
    before: Build | None
    after: Build | None
    effects: Effects


class CourseStore(Protocol):
    """The rows that a course reads and writes when events are applied to builds, and its metrics."""

    async def read(
        self, tx: Transaction, events: Mapping[str, Event], known: Mapping[str, Build]
    ) -> Mapping[str, Event]:
        """Return, by build id, the events to apply in place of own events, with what the course stores about
        them.
        """

    def rows(self, applied: Sequence[Applied], now: float) -> Sequence[BoundStatement]:
        """Return the statements that store what applied events changed, beside the builds."""

    def count(self, applied: Applied) -> None:
        """Count an applied event in the metrics, after it was stored."""


class BaseCourseStore:
    """A store without rows and metrics: its subclasses state what differs."""

    async def read(
        self, tx: Transaction, events: Mapping[str, Event], known: Mapping[str, Build]
    ) -> Mapping[str, Event]:
        return {}

    def rows(self, applied: Sequence[Applied], now: float) -> Sequence[BoundStatement]:
        return ()

    def count(self, applied: Applied) -> None:
        pass
