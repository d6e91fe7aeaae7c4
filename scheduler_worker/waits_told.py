"""Others are told at once that who waits here has changed."""

from collections.abc import Awaitable
from typing import Protocol

from bus.messages import SchedulerAlive
from bus.spaced_word import SpacedWord
from scheduler_worker.roster import Roster


class SaysAlive(Protocol):
    def __call__(self, *messages: SchedulerAlive) -> Awaitable[None]: ...


class WaitsTold:
    """A sign of life of the scheduler, out of its turn: whoever looks at who waits looks again.

    Where the bus is away the next sign of life says it, within a second.
    """

    def __init__(self, roster: Roster, say: SaysAlive) -> None:
        self._roster = roster
        self._say = say
        self._word = SpacedWord(self._tell, "that others wait now")
        self.run = self._word.run

    def moved(self) -> None:
        """Who waits, or what somebody lacks, is something else; whoever asks is told so by now."""
        self._roster.waits = (self._roster.waits + 1) % 2**31  # what a Count may be
        self._word.due()

    async def _tell(self) -> None:
        await self._say(await self._roster.say())
