"""Publishes changes of the waiting requests immediately."""

from collections.abc import Awaitable
from typing import Protocol

from bus.messages import SchedulerAlive
from bus.rate_limited import RateLimitedPublisher
from scheduler_worker.roster import Roster


class SaysAlive(Protocol):
    def __call__(self, *messages: SchedulerAlive) -> Awaitable[None]: ...


class WaitsTold:
    """An additional heartbeat of the scheduler, after which readers query the waiting requests again.

    If the broker is unreachable, the next regular heartbeat has the change, within a second.
    """

    def __init__(self, roster: Roster, say: SaysAlive) -> None:
        self._roster = roster
        self._say = say
        self._word = RateLimitedPublisher(self._tell, "that others wait now")
        self.run = self._word.run

    def moved(self) -> None:
        """Publish that the waiting requests or their needs have changed in the database."""
        self._roster.waits = (self._roster.waits + 1) % 2**31  # what a Count may be
        self._word.due()

    async def _tell(self) -> None:
        await self._say(await self._roster.say())
