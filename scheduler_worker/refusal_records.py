"""Stores why builds and moves got no host, for later queries."""

from collections.abc import Sequence

from bus.clock import Clock
from bus.messages import BuildRequested, BuildUnplaceable
from bus.sql.database import Database
from scheduler_worker.agents import UNPLACEABLE
from scheduler_worker.move_courses import RefusedMoves
from scheduler_worker.refusal_counts import count_unplaceable
from scheduler_worker.store import decisions


class RefusalRecords:
    """Stores the decisions on builds and moves without a host, and counts the builds in metrics."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def add_builds(self, ended: Sequence[tuple[BuildRequested, Sequence[object]]]) -> None:
        """Store why builds got no host, from the messages that report an unplaceable build."""
        listed = [(request, message) for request, messages in ended for message in messages]
        ending = [(asked, message) for asked, message in listed if isinstance(message, BuildUnplaceable)]
        if ending:
            UNPLACEABLE.inc(len(ending))
            count_unplaceable(ending)
            async with self._database.write() as tx:
                await decisions.add(tx, ending, self._clock.now())

    async def add_moves(self, ending: RefusedMoves) -> None:
        """Store why moves were refused."""
        if ending:
            async with self._database.write() as tx:
                await decisions.add_moves(tx, ending, self._clock.now())
