"""The schedulers that are alive."""

import logging

from prometheus_client import Gauge

from bus.clock import Clock
from bus.messages import SchedulerAlive

log = logging.getLogger(__name__)

LIVE = Gauge("berth_schedulers_live", "schedulers that share the hosts, by their heartbeats")


SAYS_SECONDS = 1.0
GONE_SECONDS = 3.5  # seconds after which a silent scheduler's share of the hosts is divided among the others


class Roster:
    """The live schedulers, including this one. They divide the hosts among themselves."""

    def __init__(self, clock: Clock, name: str = "") -> None:
        self.name = name or f"s{clock.uuid()[:8]}"
        self.waits = 0  # number of changes of the waiting requests
        self._clock = clock
        self._received: dict[str, float] = {}
        self._live: tuple[str, ...] = (self.name,)

    @property
    def live(self) -> tuple[str, ...]:
        """Return the sorted names of the live schedulers, including this one."""
        after = self._clock.monotonic() - GONE_SECONDS
        if any(at < after for at in self._received.values()):
            self._received = {name: at for name, at in self._received.items() if at >= after}
            self._live = tuple(sorted({self.name, *self._received}))
            log.info("%d schedulers share the hosts", len(self._live))
            LIVE.set(len(self._live))
        return self._live

    async def message(self) -> SchedulerAlive:
        """Return the message by which this scheduler reports that it is alive."""
        return SchedulerAlive(scheduler=self.name, waits=self.waits)

    async def handle(self, message: SchedulerAlive) -> None:
        """Record that another scheduler is alive."""
        if message.scheduler == self.name:
            return
        self._received[message.scheduler] = self._clock.monotonic()
        if message.scheduler not in self._live:
            self._live = tuple(sorted({self.name, *self._received}))
            log.info("scheduler %s takes part: %d share the hosts", message.scheduler, len(self._live))
            LIVE.set(len(self._live))
