"""All hosts as placement reports them, read on demand: all at first, then only changes."""

from contextlib import suppress

from bus.clock import Clock
from bus.host_health import every_health
from bus.replication import FindChanges, FindTrees
from bus.vocabulary import MAX_ORDINAL
from control_room.core.heat import Fleet
from control_room.known_hosts import zones_by_aggregate
from control_room.queries import NO_ANSWER, Queries

LONGEST_UNREAD = 300.0  # seconds after which changes are not followed: all is read anew
_PAGE = 2000
_MOST_CHANGES = 5000  # changes after which all is read anew
_BATCH = 500  # roots in one query


class FleetReader:
    def __init__(self, questions: Queries, clock: Clock) -> None:
        self._questions = questions
        self._clock = clock
        self._fleet: Fleet | None = None
        self._read = float("-inf")
        self._layouts = int(clock.now())

    async def read(self, _: None = None) -> Fleet:
        """Return all hosts. Raise the error of a process that does not answer."""
        if self._clock.monotonic() - self._read > LONGEST_UNREAD:
            self._fleet = None
        fleet = self._fleet = await (self._followed(self._fleet) if self._fleet else self._all())
        fleet.set_down(await self._down())
        self._read = self._clock.monotonic()
        return fleet

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
            if found.last - fleet.number > _MOST_CHANGES or (
                found.oldest > number + 1 and found.last > number
            ):
                return await self._all()
            if any(change.aggregates or not change.changes for change in found.changes):
                return await self._all()
            roots.update(change.root for one in found.changes for change in one.changes)
            if not found.changes:
                break
            number = found.changes[-1].number
        left = sorted(roots)
        while left:
            page = await self._questions.trees(FindTrees(roots=tuple(left[:_BATCH])))
            if not page.trees:
                break
            fleet.take(page, number)
            left = left[len(page.trees) :]
        fleet.number = number
        return fleet
