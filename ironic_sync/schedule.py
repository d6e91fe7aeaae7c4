"""When Ironic and placement are compared: by the clock, often while nothing is heard, at once after a gap."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from bus.errors import Unavailable
from ironic_sync.access import IronicRefused
from ironic_sync.meters import HEARING
from ironic_sync.sweep import Sweep

log = logging.getLogger(__name__)

SOONEST_SECONDS = 5.0  # from one look at everything to the next, however often something may have been missed
SETTLING_SECONDS = 2.0  # until what was hinted at is so


class SweepSchedule:
    """Runs a sweep's rounds. The first is of everything."""

    def __init__(
        self,
        sweep: Sweep,
        *,
        seconds: float,
        deaf_seconds: float,
        hears: Callable[[], bool] | None,  # None: nobody ever does
    ) -> None:
        self._sweep = sweep
        self._seconds = seconds
        self._deaf_seconds = min(deaf_seconds, seconds)
        self._hears = hears
        self._stirred = asyncio.Event()
        self._gap = True  # something may have passed us by: only everything will do
        self._settled_at: float | None = None  # when what was hinted at is so
        self._everything_at = 0.0  # no sooner

    def missed(self) -> None:
        """Something may have passed us by."""
        self._gap = True
        self._stirred.set()

    def hinted(self) -> None:
        """Some node changes, and it is not said which."""
        self._settled_at = asyncio.get_running_loop().time() + SETTLING_SECONDS
        self._stirred.set()

    async def run(self) -> None:
        if self._hears is not None:  # what is not read yet when we begin to hear cannot pass us by
            await self._stir_within(SOONEST_SECONDS)
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._look()
            except (Unavailable, IronicRefused) as problem:
                log.warning("no sweep over Ironic's nodes: %s", problem)
                self._gap = True
                await asyncio.sleep(min(self._seconds, 2 * SOONEST_SECONDS))
            else:
                await self._until_due(began)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._settled_at = None
        if not self._gap:
            await self._sweep.round(deaf=self._deaf())
            return
        await self._sweep.lately()  # two requests find most of what everything will
        await asyncio.sleep(self._everything_at - loop.time())
        self._gap = False
        await self._sweep.everything()
        self._everything_at = loop.time() + SOONEST_SECONDS

    async def _until_due(self, began: float) -> None:
        loop = asyncio.get_running_loop()
        while not self._gap:
            due = began + (self._deaf_seconds if self._deaf() else self._seconds)
            if self._settled_at is not None:
                due = min(due, max(began + SOONEST_SECONDS, self._settled_at))
            if loop.time() >= due:
                return
            await self._stir_within(min(due - loop.time(), self._deaf_seconds))

    def _deaf(self) -> bool:
        if self._hears is None:
            return False
        hears = self._hears()
        HEARING.set(hears)
        return not hears

    async def _stir_within(self, seconds: float) -> None:
        self._stirred.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stirred.wait()
