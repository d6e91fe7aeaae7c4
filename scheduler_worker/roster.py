"""Which schedulers are alive: each says so every second, and who is silent for some is held to be gone."""

import logging

from bus.clock import Clock
from bus.messages import SchedulerAlive
from scheduler_worker.meters import LIVE

log = logging.getLogger(__name__)

SAYS_SECONDS = 1.0
GONE_SECONDS = 3.5  # a scheduler that pauses longer meets others at its hosts: that costs claims, no more


class Roster:
    """Who shares the hosts with this scheduler."""

    def __init__(self, clock: Clock, name: str = "") -> None:
        self.name = name or f"s{clock.uuid()[:8]}"
        self.waits = 0  # how often it has changed who waits here
        self._clock = clock
        self._heard: dict[str, float] = {}
        self._live: tuple[str, ...] = (self.name,)

    @property
    def live(self) -> tuple[str, ...]:
        """Their names, ours among them, in order."""
        after = self._clock.monotonic() - GONE_SECONDS
        if any(at < after for at in self._heard.values()):
            self._heard = {name: at for name, at in self._heard.items() if at >= after}
            self._live = tuple(sorted({self.name, *self._heard}))
            log.info("%d schedulers share the hosts", len(self._live))
            LIVE.set(len(self._live))
        return self._live

    async def say(self) -> SchedulerAlive:
        return SchedulerAlive(scheduler=self.name, waits=self.waits)

    async def hear(self, message: SchedulerAlive) -> None:
        if message.scheduler == self.name:
            return
        self._heard[message.scheduler] = self._clock.monotonic()
        if message.scheduler not in self._live:
            log.info("scheduler %s takes part: %d share the hosts", message.scheduler, len(self._heard) + 1)
            self._live = tuple(sorted({self.name, *self._heard}))
            LIVE.set(len(self._live))
