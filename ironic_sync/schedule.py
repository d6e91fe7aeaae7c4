"""Schedules sweeps: periodically, more often while notifications are not received, immediately after a
gap.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from bus.errors import Unavailable
from ironic_sync.access import IronicRefused
from ironic_sync.meters import HEARING
from ironic_sync.sweep import Sweep

log = logging.getLogger(__name__)

SOONEST_SECONDS = 5.0  # between two full sweeps, however often notifications may have been lost
SETTLING_SECONDS = 2.0  # until a hinted change has taken effect


class SweepSchedule:
    """Runs the rounds of a sweep. The first round reads everything."""

    def __init__(
        self,
        sweep: Sweep,
        *,
        seconds: float,
        deaf_seconds: float,
        hears: Callable[[], bool] | None,  # missing: notifications are not used
    ) -> None:
        self._sweep = sweep
        self._seconds = seconds
        self._deaf_seconds = min(deaf_seconds, seconds)
        self._hears = hears
        self._stirred = asyncio.Event()
        self._gap = True  # notifications may be lost: only a full sweep will do
        self._settled_at: float | None = None  # when the hinted change has taken effect
        self._everything_at = 0.0  # the earliest time of the next full sweep

    def missed(self) -> None:
        """Note that notifications may be lost."""
        self._gap = True
        self._stirred.set()

    def hinted(self) -> None:
        """Note that some node is changing, and the notification does not name it."""
        self._settled_at = asyncio.get_running_loop().time() + SETTLING_SECONDS
        self._stirred.set()

    async def run(self) -> None:
        if self._hears is not None:  # a notification after the subscription cannot be lost, so read after it
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
        await self._sweep.lately()  # two requests find most differences
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
