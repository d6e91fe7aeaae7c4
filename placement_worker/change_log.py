"""The numbered log of changes: a commit writes itself down in it, then the memory and the bus learn of it."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.replication import PlacementChanged, ProviderChange
from bus.sql.database import Database
from bus.sql.failures import Conflict
from bus.sql.statement import BoundStatement
from bus.sql.transaction import Transaction
from placement_worker.core.compact_trees import carried
from placement_worker.core.trees import Tree
from placement_worker.index_reads import StoreReader
from placement_worker.index_updates import Memory
from placement_worker.relay import Relay
from placement_worker.store import changes, tree_reads, tree_writes
from placement_worker.store.numbered_names import Book


class ChangeLog:
    """Writes every commit of placement to the change log, applies it to the index, and wakes the relay."""

    def __init__(self, database: Database, book: Book) -> None:
        self._database = database
        self._book = book
        self.memory = Memory(StoreReader(database, book))
        self.relay = Relay(database)

    async def write(
        self,
        tx: Transaction,
        altered: Sequence[ProviderChange],
        shaped: Mapping[str, Tree],
        writes: Sequence[BoundStatement] = (),
        edition: int | None = None,
    ) -> int:
        """Execute the last writes of a transaction and log the change. Return its change number; it is 0 if
        nothing changed.

        `shaped` are the created or reshaped trees after the change; `edition` is that of class and trait
        names, if this commit creates one.
        """
        if not altered:
            for write in writes:
                await write(tx)
            return 0
        messages, now = await changes.announce(tx, altered, writes)
        if now != (self._book.edition if edition is None else edition):
            await self._book.turn_to(tx, now)
            raise Conflict("a class was renamed meanwhile")
        tx.after_commit(lambda: self._learn(messages, shaped))
        return messages[-1].number

    async def write_trees(
        self,
        tx: Transaction,
        pairs: Sequence[tuple[Tree, Tree]],
        now: float,
        numbers: Iterator[int] = tree_writes.NONE_NEW,
        beside: Sequence[BoundStatement] = (),
        last: Sequence[BoundStatement] = (),
    ) -> int:
        """Write the trees as they are to be, given as they were read, and log the change. Return its change
        number.

        `beside` is written after all providers and inventories; `last` is written with the number and must
        not depend on the rest.
        """
        writes = await tree_writes.writes_between(self._book, pairs, now, numbers).begin(tx)
        for write in beside:
            await write(tx)
        # Trees of repeated reports were not locked, so their usage may be outdated.
        shaped = {then.root: then for was, then in pairs if then.providers != was.providers}
        return await self.write(tx, tree_reads.changes_between(pairs), shaped, [*writes, *last])

    async def write_aggregates(self, tx: Transaction, aggregates: Sequence[Aggregate]) -> int:
        """Log the new names and metadata of the aggregates. Return the change number."""
        message = await changes.announce_aggregates(tx, aggregates)
        tx.after_commit(lambda: self._learn([message], {}))
        return message.number

    async def write_cells(self, tx: Transaction, cells: Sequence[RegisteredCell]) -> int:
        """Log the new state of the cells. Return the change number."""
        message = await changes.announce_cells(tx, cells)
        tx.after_commit(lambda: self._learn([message], {}))
        return message.number

    async def trim(self) -> None:
        """Forget the changes of long ago."""
        async with self._database.write() as tx:
            await changes.trim(tx)

    def _learn(self, messages: Sequence[PlacementChanged], shaped: Mapping[str, Tree]) -> None:
        """Apply changes of this process to the index."""
        self.memory.learn(messages, shaped)
        if len(messages) == 1 and (trees := carried(shaped.values())) is not None:
            messages = [replace(messages[0], trees=trees)]
        self.relay.committed(messages)
