"""What was committed is told to the bus, whatever dies in between: the log, in order; and reshaped builds."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

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
POLL_SECONDS = 1.0  # for what a killed process left behind; this one's own commits wake the relay at once
PUBLISH_SECONDS = 30.0
SHORTEST_WAIT, LONGEST_WAIT = 0.1, 5.0
LINGER = 0.01  # between rounds, while commits come one upon the other: a round costs about what a commit does


class Relay:
    """A number in the database says how far the bus has been told; it moves when a publish has returned.

    So what is told twice has the same number twice. What the log had to forget while the bus was away is not
    told: whoever listens finds numbers missing.
    """

    tells = "the changes"

    def __init__(self, database: Database) -> None:
        self._database = database
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There is something to tell."""
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
                await asyncio.sleep(wait)
                wait = min(wait * 2, LONGEST_WAIT)
                continue
            if wait != SHORTEST_WAIT:
                HELD_UP.labels(self.tells).set(0)
            wait = SHORTEST_WAIT
            if not more:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._woken.wait()
                if (early := began + LINGER - clock()) > 0:
                    await asyncio.sleep(early)

    async def _round(self, publish: Publish) -> bool:
        """Tell the oldest; whether there may be more."""
        if self._database.dialect == "postgresql":
            # The locked number keeps other processes' relays waiting, and hinders nobody who writes.
            async with self._database.write() as tx:
                oldest = await changes.untold(tx, CHANGES_A_ROUND)
                if oldest:
                    await _published(publish, oldest)
                    await changes.tell(tx, oldest[-1].number)
        else:
            # Publishing takes its time: not with SQLite's one write lock in hand.
            async with self._database.glance() as tx:
                oldest = await changes.untold(tx, CHANGES_A_ROUND)
            if oldest:
                await _published(publish, oldest)
                async with self._database.write() as tx:
                    await changes.tell(tx, oldest[-1].number)
        return len(oldest) == CHANGES_A_ROUND


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
