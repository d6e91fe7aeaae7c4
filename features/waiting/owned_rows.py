"""The ownership of the rows of table `queued`: each row belongs to one scheduler, which handles its request.

New requests (`stored_requests.py`) are encoded messages: only the first ones of each project are in memory,
and a row is deleted when the bus has handled its message. Evaluated requests (`store.py`) are all in memory,
and a row is deleted when its result is published. Both kinds belong to the scheduler that stored them, until
it ends and another one takes them over (`owner.py`).
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from bus.sql.database import Database
from bus.sql.failures import Conflict
from bus.sql.statement import Transaction
from features.waiting.core.reserved_hosts import Root, StoredHold
from features.waiting.tables import queued


class OwnedRows:
    """The rows of one scheduler. Its heartbeats keep other schedulers from taking them over."""

    def __init__(self, database: Database, name: str, holds: Callable[[], Mapping[Root, StoredHold]]) -> None:
        self.database = database
        self.name = name
        self.rescued = 0  # requests that waited although a host fitted
        self.is_registered = False  # whether this scheduler has stored a heartbeat
        self.taken_for_dead = False
        # Counts transactions of which it is unknown whether they were committed: the stored requests of this
        # scheduler must then be compared with those in memory.
        self.unknown_commits = 0
        self._holds = holds

    async def live(self, tx: Transaction, starts: str = "") -> None:
        """Store this scheduler's heartbeat and, unless `starts` is empty, how fast its queues advance."""
        holds = queued.encode_holds([*self._holds().values()])
        if not await queued.beat(tx, self.name, self.rescued, starts, holds):
            self.taken_for_dead = self.is_registered
        self.is_registered = True

    @asynccontextmanager
    async def adding(self) -> AsyncIterator[Transaction]:
        """Begin a transaction that adds rows to this scheduler. The heartbeat is stored first, so that no
        other scheduler takes the rows over, and so that two such transactions do not deadlock.
        """
        with self.noting_unknown_commits():
            async with self.database.write() as tx:
                await self.live(tx)
                yield tx

    @contextmanager
    def noting_unknown_commits(self) -> Iterator[None]:
        """In a `with` block around a write transaction, note an error: the commit may have succeeded."""
        try:
            yield
        except Conflict:  # nothing was committed
            raise
        except BaseException:
            self.unknown_commits += 1
            raise
