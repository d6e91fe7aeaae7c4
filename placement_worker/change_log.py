"""The log of placement's changes: each commit is numbered, logged, applied to the index and published."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace
from prometheus_client import Gauge

from bus.clock import Clock
from bus.errors import Unavailable
from bus.messages import BuildReshaped
from bus.replication import PlacementChanged
from bus.sql.database import Database
from bus.sql.failures import Conflict
from bus.sql.statement import BoundStatement, Transaction
from placement_worker.core.trees import Tree, carried
from placement_worker.memory import Memory, StoreReader
from placement_worker.store import changes, stored_trees
from placement_worker.store.changes import CommitRecord
from placement_worker.store.numbered_names import Book
from placement_worker.store.reshapes import NONE_MOVED, MovedAllocations

HELD_UP = Gauge("berth_relay_held_up", "1 while committed changes cannot be published", ["what"])


log = logging.getLogger(__name__)

Publish = Callable[..., Awaitable[None]]  # publishes messages; returns after the broker's confirm

CHANGES_A_ROUND = 200
RESHAPES_A_ROUND = 20  # number of commits, each with the messages about all builds of a host
UNPUBLISHED = 1000  # unpublished changes in memory; if there are more, the log is read
RECORD_SECONDS = 0.25  # until the last published number is stored; before, another relay may repeat it
POLL_SECONDS = 1.0  # between reads of the log, for commits of killed processes; other commits wake the relay
PUBLISH_SECONDS = 30.0
SHORTEST_WAIT, LONGEST_WAIT = 0.1, 5.0
LINGER = 0.002  # minimum seconds from the start of a round to the next; changes committed meanwhile share it
CLAIMS_LINGER = 0.05  # pause before a round that publishes only claims, for which no request waits


class Relay:
    """Publishes the change log in order. The number of the last published change is stored in the database
    after the broker's confirm.

    So a change may be published twice, with the same number. The log has a limited length: changes deleted
    from the log during an outage of the broker are never published, and readers notice the gap in the
    numbers. Recent commits of this process are published from memory if they directly follow the last
    published number; if not, the log is read.
    """

    tells = "the changes"

    def __init__(self, database: Database) -> None:
        self._database = database
        self._woken = asyncio.Event()
        self._urgent = asyncio.Event()  # set if a request may wait for a change
        self._reads_log = True  # whether to read the log for changes to publish
        self._unpublished: dict[int, PlacementChanged] = {}  # commits of this process that are not published
        self._published = 0  # all changes up to this number are published; 0: read it from the database
        self._recorded = 0  # the last published number that is stored in the database
        self._recorded_at = 0.0
        # numbers of commits that were published from the log before `committed` was called with them
        self._logged: set[int] = set()
        self._outdated = False  # True after a fail-over: the numbers in memory may be those of lost commits

    def wake(self) -> None:
        """Make the relay read the change log in the database, and publish all changes that are not published
        yet.
        """
        self._reads_log = True
        self._urgent.set()
        self._woken.set()

    def forget(self) -> None:
        """Make the relay read the last published number from the database again: after a fail-over, published
        commits may be lost.
        """
        self._outdated = True
        self.wake()

    def committed(self, messages: Sequence[PlacementChanged], *, urgent: bool = True) -> None:
        """Make the relay publish changes that this process has just committed. If they are not `urgent`, they
        may wait for further changes.
        """
        if urgent:
            self._urgent.set()
        new = [message for message in messages if message.number not in self._logged]
        # A number that was published before: an older database was restored, so read the log.
        if any(change.number <= self._published for change in new):
            self._published = self._recorded = 0
            self._unpublished.clear()
        if len(self._unpublished) >= UNPUBLISHED:
            self._unpublished.clear()
        self._unpublished.update((change.number, change) for change in new)
        self._woken.set()

    async def run(self, publish: Publish) -> None:
        """Publish committed changes in the order of their numbers, until cancelled; one process does so at a
        time.
        """
        wait = SHORTEST_WAIT
        clock = asyncio.get_running_loop().time
        while True:
            self._woken.clear()
            self._urgent.clear()
            began = clock()
            try:
                more = await self._round(publish)
            except (Unavailable, Conflict) as condition:
                if wait == SHORTEST_WAIT:
                    HELD_UP.labels(self.tells).set(1)
                    log.warning("%s in %s are not published: %s", self.tells, self._database.name, condition)
                self._reads_log = True
                await asyncio.sleep(wait)
                wait = min(wait * 2, LONGEST_WAIT)
                continue
            if wait != SHORTEST_WAIT:
                HELD_UP.labels(self.tells).set(0)
            wait = SHORTEST_WAIT
            if not more:
                patience = RECORD_SECONDS if self._published > self._recorded else POLL_SECONDS
                try:
                    async with asyncio.timeout(patience):
                        await self._woken.wait()
                except TimeoutError:
                    self._reads_log = True
                if (early := began + LINGER - clock()) > 0:
                    await asyncio.sleep(early)
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(began + CLAIMS_LINGER):
                        await self._urgent.wait()

    async def _round(self, publish: Publish) -> bool:
        """Publish the next commits, from memory or from the log; return whether more are to be published."""
        if self._outdated:
            self._outdated, self._published, self._recorded = False, 0, 0
            self._unpublished.clear()
            self._logged.clear()
        following = self._following()
        if not following:
            if not (self._reads_log or self._unpublished):
                return False  # all changes in memory are published
            self._reads_log = False
            return await self._round_of_the_log(publish)
        await _published(publish, following)
        self._record_published(following[-1].number)
        clock = asyncio.get_running_loop().time
        if clock() - self._recorded_at >= RECORD_SECONDS:
            async with self._database.write() as tx:
                await changes.TELL(tx, number=self._published)
            self._recorded, self._recorded_at = self._published, clock()
        return bool(self._unpublished)

    def _following(self) -> list[PlacementChanged]:
        """Return the commits in memory that follow the last published one without a gap."""
        following: list[PlacementChanged] = []
        next_one = self._published + 1
        while self._published and len(following) < CHANGES_A_ROUND and next_one in self._unpublished:
            following.append(self._unpublished[next_one])
            next_one += 1
        return following

    async def _round_of_the_log(self, publish: Publish) -> bool:
        in_the_log = list(self._unpublished)
        if self._database.dialect == "postgresql":
            # The transaction locks the last published number: relays of other processes wait, writers do not.
            async with self._database.write() as tx:
                oldest = await changes.unpublished(tx, CHANGES_A_ROUND, self._published)
                await self._publish_logged(oldest, publish)
                if self._published > self._recorded:
                    await changes.TELL(tx, number=self._published)
        else:
            # Publishing is slow: do not hold SQLite's only write lock meanwhile.
            async with self._database.read_single() as tx:
                oldest = await changes.unpublished(tx, CHANGES_A_ROUND, self._published)
            await self._publish_logged(oldest, publish)
            if self._published > self._recorded:
                async with self._database.write() as tx:
                    await changes.TELL(tx, number=self._published)
        self._recorded, self._recorded_at = self._published, asyncio.get_running_loop().time()
        if len(oldest) == CHANGES_A_ROUND:
            self._reads_log = True
            return True
        for number_logged in in_the_log:  # all are published now, by this process or another one
            self._unpublished.pop(number_logged, None)
        return False

    async def _publish_logged(self, oldest: Sequence[PlacementChanged], publish: Publish) -> None:
        if oldest:
            # The log contains no provider trees: publish commits of this process from memory, with trees.
            in_memory = [self._unpublished.get(change.number, change) for change in oldest]
            both = zip(oldest, in_memory, strict=True)
            await _published(
                publish,
                [
                    remembered if remembered.changes == logged.changes else logged
                    for logged, remembered in both
                ],
            )
            self._logged = {change.number for change in oldest}
            self._record_published(oldest[-1].number)

    def _record_published(self, number: int) -> None:
        self._published = number
        for earlier in [earlier for earlier in self._unpublished if earlier <= number]:
            del self._unpublished[earlier]


class ReshapedBuilds(Relay):
    """Publishes the stored messages about reshaped builds, at least once: one for each build whose host's
    provider tree was reshaped.
    """

    tells = "reshaped builds"

    async def _round(self, publish: Publish) -> bool:
        """Publish a page of stored messages about reshaped builds; return whether there may be more."""
        async with self._database.read_single() as tx:
            numbers, messages = await changes.unpublished_reshaped(tx, RESHAPES_A_ROUND)
        if numbers:
            await _published(publish, messages)
            async with self._database.write() as tx:
                await changes.FORGET_RESHAPED(tx, [(number,) for number in numbers])
        return len(numbers) == RESHAPES_A_ROUND


async def _published(publish: Publish, messages: Sequence[PlacementChanged | BuildReshaped]) -> None:
    try:
        async with asyncio.timeout(PUBLISH_SECONDS):
            await publish(*messages)
    except TimeoutError:
        raise Unavailable(f"the bus took no messages for {PUBLISH_SECONDS:.0f} s") from None


class ChangeLog:
    """Writes every commit of placement to the change log, applies it to the index, and wakes the relay."""

    def __init__(
        self, database: Database, book: Book, clock: Clock, memory: Memory, keep: int = changes.KEEP
    ) -> None:
        self._database = database
        self._book = book
        self._clock = clock
        self.keep = keep  # number of latest commits to keep in the log
        self.memory = memory
        memory.reader = StoreReader(database, book)
        self.relay = Relay(database)

    async def write(
        self,
        tx: Transaction,
        record: CommitRecord,
        writes: Sequence[BoundStatement] = (),
        *,
        edition: int | None = None,
        urgent: bool = True,
    ) -> int:
        """Execute `writes`, the last statements of a transaction, and log its changes. Return the change
        number, or 0 if the record has no changes, aggregates, cells and wakes. After a resource class was
        renamed, `edition` is the new version of the stored names. Changes that are not `urgent` may be
        published later, together with further changes.
        """
        if not (record.changes or record.aggregates or record.cells or record.wakes):
            for write in writes:
                await write(tx)
            return 0
        messages, stored, rules = await changes.announce(tx, record, self._clock.now(), writes)
        if record.changes:  # they depend on names and on the data of rules
            if stored != (self._book.edition if edition is None else edition):
                await self._book.turn_to(tx, stored)
                raise Conflict("a class was renamed meanwhile")
            self._book.check_rules(rules)
        tx.after_commit(lambda: self._learn(messages, record.shaped, urgent=urgent))
        return messages[-1].number

    async def write_trees(
        self,
        tx: Transaction,
        pairs: Sequence[tuple[Tree, Tree]],
        now: float,
        numbers: Iterator[int] = stored_trees.NONE_NEW,
        moved: MovedAllocations = NONE_MOVED,
        last: Sequence[BoundStatement] = (),
    ) -> int:
        """Store changed provider trees (`pairs`: a tree as it was read, and as it is now) and the allocations
        `moved` between their providers, log the change, and return its number. `numbers` yields database ids
        for new providers. `last` are statements independent of all other statements.
        """
        first, writes = stored_trees.writes_between(self._book, pairs, now, numbers)
        for write in (*first, *moved.writes):
            await write(tx)
        # Leave out unchanged trees: they were not locked, so their usage may be outdated.
        shaped = {then.root: then for was, then in pairs if then.providers != was.providers}
        altered = stored_trees.changes_between(pairs)
        record = CommitRecord(changes=altered, shaped=shaped, consumers=moved.consumers)
        return await self.write(tx, record, [*writes, *last])

    async def trim(self) -> None:
        """Delete old changes that are published from the log."""
        async with self._database.write() as tx:
            await changes.TRIM(tx, keep=self.keep, unpublished=changes.KEEP_UNPUBLISHED)

    def _learn(
        self, messages: Sequence[PlacementChanged], shaped: Mapping[str, Tree], *, urgent: bool = True
    ) -> None:
        """Apply commits to the index, and give them to the relay that publishes them."""
        self.memory.learn(messages, shaped)
        if len(messages) == 1 and shaped and (trees := carried(shaped.values())) is not None:
            messages = [replace(messages[0], trees=trees)]
        self.relay.committed(messages, urgent=urgent)
