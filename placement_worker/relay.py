"""What was committed is told to the bus, whatever dies in between: the log, in order; and reshaped builds."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from bus.errors import Unavailable
from bus.messages import BuildReshaped, PlacementChanged
from bus.sql.database import Database
from bus.sql.failures import Conflict
from placement_worker.meters import HELD_UP
from placement_worker.store import changes, reshaped_builds

log = logging.getLogger(__name__)

Publish = Callable[..., Awaitable[None]]  # of any number of messages; returns when the broker has them safe

CHANGES_A_ROUND = 200
RESHAPES_A_ROUND = 20  # each of the builds of a host
AT_HAND = 1000  # changes: while the bus is away, the log remembers the others
RECORD_SECONDS = (
    0.25  # until it is written down how far the bus was told from memory: another may tell it again
)
POLL_SECONDS = 1.0  # for what a killed process left behind; this one's own commits wake the relay at once
PUBLISH_SECONDS = 30.0
SHORTEST_WAIT, LONGEST_WAIT = 0.1, 5.0
LINGER = 0.01  # between rounds, while commits come one upon the other: a round costs about what a commit does


class Relay:
    """A number in the database says how far the bus has been told; it moves when a publish has returned.

    So what is told twice has the same number twice. What the log had to forget while the bus was away is not
    told: whoever listens finds numbers missing. What this process has just committed is told from memory,
    where it follows at once upon what it told last; wherever it does not, the log is read.
    """

    tells = "the changes"

    def __init__(self, database: Database) -> None:
        self._database = database
        self._woken = asyncio.Event()
        self._look = True  # into the log
        self._at_hand: dict[int, PlacementChanged] = {}  # committed here, and not told yet
        self._told = 0  # by this process, with all that came before it; 0: the log knows
        self._recorded = 0  # of that, what the database says, too
        self._recorded_at = 0.0
        self._logged: set[int] = set()  # what was told last from the log; we may hear of it only then

    def wake(self) -> None:
        """There is something to tell, in the database."""
        self._look = True
        self._woken.set()

    def committed(self, messages: Sequence[PlacementChanged]) -> None:
        """This process has committed these changes."""
        new = [one for one in messages if one.number not in self._logged]
        if any(one.number <= self._told for one in new):  # an older database was put back: the log knows
            self._told = self._recorded = 0
            self._at_hand.clear()
        if len(self._at_hand) >= AT_HAND:
            self._at_hand.clear()
        self._at_hand.update((one.number, one) for one in new)
        self._woken.set()

    async def run(self, publish: Publish) -> None:
        wait = SHORTEST_WAIT
        clock = asyncio.get_running_loop().time
        while True:
            self._woken.clear()
            began = clock()
            try:
                more = await self._round(publish)
            except (Unavailable, Conflict) as condition:
                if wait == SHORTEST_WAIT:
                    HELD_UP.labels(self.tells).set(1)
                    log.warning("%s in %s wait to be told: %s", self.tells, self._database.name, condition)
                self._look = True
                await asyncio.sleep(wait)
                wait = min(wait * 2, LONGEST_WAIT)
                continue
            if wait != SHORTEST_WAIT:
                HELD_UP.labels(self.tells).set(0)
            wait = SHORTEST_WAIT
            if not more:
                patience = RECORD_SECONDS if self._told > self._recorded else POLL_SECONDS
                try:
                    async with asyncio.timeout(patience):
                        await self._woken.wait()
                except TimeoutError:
                    self._look = True
                if (early := began + LINGER - clock()) > 0:
                    await asyncio.sleep(early)

    async def _round(self, publish: Publish) -> bool:
        """Tell the oldest; whether there may be more."""
        following = self._following()
        if not following:
            if not (self._look or self._at_hand):
                return False  # what woke us was told meanwhile
            self._look = False
            return await self._round_of_the_log(publish)
        await _published(publish, following)
        self._have_told(following[-1].number)
        clock = asyncio.get_running_loop().time
        if clock() - self._recorded_at >= RECORD_SECONDS:
            async with self._database.write() as tx:
                await changes.tell(tx, self._told)
            self._recorded, self._recorded_at = self._told, clock()
        return bool(self._at_hand)

    def _following(self) -> list[PlacementChanged]:
        """What is at hand of what comes next, when that is known."""
        following: list[PlacementChanged] = []
        next_one = self._told + 1
        while self._told and len(following) < CHANGES_A_ROUND and next_one in self._at_hand:
            following.append(self._at_hand[next_one])
            next_one += 1
        return following

    async def _round_of_the_log(self, publish: Publish) -> bool:
        in_the_log = list(self._at_hand)
        if self._database.dialect == "postgresql":
            # The locked number keeps other processes' relays waiting, and hinders nobody who writes.
            async with self._database.write() as tx:
                oldest = await changes.untold(tx, CHANGES_A_ROUND, self._told)
                await self._tell_logged(oldest, publish)
                if self._told > self._recorded:
                    await changes.tell(tx, self._told)
        else:
            # Publishing takes its time: not with SQLite's one write lock in hand.
            async with self._database.glance() as tx:
                oldest = await changes.untold(tx, CHANGES_A_ROUND, self._told)
            await self._tell_logged(oldest, publish)
            if self._told > self._recorded:
                async with self._database.write() as tx:
                    await changes.tell(tx, self._told)
        self._recorded, self._recorded_at = self._told, asyncio.get_running_loop().time()
        if len(oldest) == CHANGES_A_ROUND:
            self._look = True
            return True
        for one in in_the_log:  # what was not read there, another process has told
            self._at_hand.pop(one, None)
        return False

    async def _tell_logged(self, oldest: Sequence[PlacementChanged], publish: Publish) -> None:
        if oldest:
            await _published(publish, [self._with_trees(one) for one in oldest])
            self._logged = {one.number for one in oldest}
            self._have_told(oldest[-1].number)

    def _with_trees(self, logged: PlacementChanged) -> PlacementChanged:
        """The log keeps none; what was committed here still has those it reshaped."""
        here = self._at_hand.get(logged.number)
        return here if here is not None and here.changes == logged.changes else logged

    def _have_told(self, number: int) -> None:
        self._told = number
        for one in [one for one in self._at_hand if one <= number]:
            del self._at_hand[one]


class ReshapedBuilds(Relay):
    """Tells conductors of builds whose hosts were reshaped. What has been told is forgotten, and what is told
    by two at once comes twice."""

    tells = "reshaped builds"

    async def _round(self, publish: Publish) -> bool:
        async with self._database.glance() as tx:
            numbers, said = await reshaped_builds.untold(tx, RESHAPES_A_ROUND)
        if numbers:
            await _published(publish, said)
            async with self._database.write() as tx:
                await reshaped_builds.forget(tx, numbers)
        return len(numbers) == RESHAPES_A_ROUND


async def _published(publish: Publish, messages: Sequence[PlacementChanged | BuildReshaped]) -> None:
    try:
        async with asyncio.timeout(PUBLISH_SECONDS):
            await publish(*messages)
    except TimeoutError:
        raise Unavailable(f"the bus took no messages for {PUBLISH_SECONDS:.0f} s") from None
