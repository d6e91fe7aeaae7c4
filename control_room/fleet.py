"""All hosts as placement reports them, read on demand: all at first, then only changes."""

import asyncio
from contextlib import suppress

from bus.clock import Clock
from bus.host_health import every_health
from bus.replication import FindChanges, FindTrees
from bus.vocabulary import MAX_ORDINAL
from control_room.core.heat import Fleet
from control_room.known_hosts import zones_by_aggregate
from control_room.page_refresh import Stirring
from control_room.queries import NO_ANSWER, RoomQuestions

FRESH = 2.0  # seconds until it is read again without news
_STIRRED = 0.1  # where something was
LET_GO = 300.0  # seconds without a reader until it is deleted
_PAGE = 2000
_ANEW = 5000  # changes after which all is read anew
_AT_ONCE = 500  # roots asked for together


class Fleets:
    def __init__(self, questions: RoomQuestions, clock: Clock, stirring: Stirring) -> None:
        self._questions = questions
        self._clock = clock
        self._reading = asyncio.Lock()
        self._fleet: Fleet | None = None
        self._at = float("-inf")
        self._stirring = stirring
        self._stirred = 0  # by when it was read
        self._layouts = int(clock.now())

    async def fleet(self) -> Fleet:
        """Return all hosts. Raise the error of a process that does not answer."""
        async with self._reading:
            now, stirred = self._clock.monotonic(), self._stirring.count
            fresh = FRESH if stirred == self._stirred else _STIRRED
            if self._fleet is None or now - self._at > LET_GO:
                self._fleet = None
                self._fleet = await self._all()
            elif now - self._at > fresh:
                self._fleet = await self._followed(self._fleet)
            else:
                return self._fleet
            self._fleet.judge(await self._down())
            self._at, self._stirred = self._clock.monotonic(), stirred
            return self._fleet

    async def _all(self) -> Fleet:
        """Read all hosts. A change in the meantime has a higher number, and is read again."""
        last = await self._questions.changes(FindChanges(after=MAX_ORDINAL, limit=1))
        self._layouts += 1_000_000  # no number that a browser has received
        fleet = Fleet(
            number=last.last, layout=self._layouts, zones=await zones_by_aggregate(self._questions.aggregates)
        )
        after: int | None = 0
        while after is not None:
            page = await self._questions.trees(FindTrees(after=after, limit=_PAGE))
            fleet.take(page)
            after = page.more
        return fleet

    async def _down(self) -> frozenset[str]:
        """Return the roots of hosts that a scheduler reports as down or closed."""
        down = set[str]()
        with suppress(*NO_ANSWER):
            async for health in every_health(self._questions.health):
                if health.recorded:
                    down.add(health.root)
        return frozenset(down)

    async def _followed(self, fleet: Fleet) -> Fleet:
        number, roots = fleet.number, set[str]()
        while True:
            found = await self._questions.changes(FindChanges(after=number, limit=1000))
            if found.last - fleet.number > _ANEW or (found.oldest > number + 1 and found.last > number):
                return await self._all()
            if any(change.aggregates or not change.changes for change in found.changes):
                return await self._all()
            roots.update(change.root for one in found.changes for change in one.changes)
            if not found.changes:
                break
            number = found.changes[-1].number
        waiting = sorted(roots)
        while waiting:
            asked = waiting[:_AT_ONCE]
            page = await self._questions.trees(FindTrees(roots=tuple(asked)))
            if not page.trees:
                break
            fleet.take(page, number)
            waiting = waiting[len(page.trees) :]
        fleet.number = number
        return fleet
