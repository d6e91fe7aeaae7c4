"""The schedulers that are alive, by their heartbeats, and Prometheus metrics about conflicts between them."""

import logging
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Sequence

from prometheus_client import Counter, Gauge

from bus.claims import Claimed, ClaimResult, Refused
from bus.clock import Clock, RateLimitedPublisher
from bus.messages import SchedulerAlive

CLAIMED = Counter(
    "berth_scheduler_claims", "instances a host was claimed for, by placement's answer", ["result"]
)
TURNED_DOWN = Counter(
    "berth_scheduler_choices_refused", "hosts that placement refused in claims, by reason", ["why"]
)
CROSSED = Counter(
    "berth_scheduler_crossings", "picks outside the slice of this scheduler, for want of room in it"
)
LIVE = Gauge("berth_schedulers_live", "schedulers that share the hosts, by their heartbeats")
RESCUED = Counter(
    "berth_scheduler_rescued", "requests that waited though there was a host, found by the slow sweep alone"
)
UNPLACEABLE = Counter("berth_scheduler_unplaceable", "requests that ended without a host")
HOSTS = Gauge("berth_scheduler_hosts", "hosts by state, as this scheduler judges it", ["status"])
WAITING_NOW = Gauge("berth_scheduler_waiting", "requests that wait for room with this scheduler")


def count_claims(results: Sequence[ClaimResult]) -> None:
    refusals = [
        refusal
        for result in results
        if isinstance(result, Claimed | Refused)
        for refusal in (result.refused if isinstance(result, Claimed) else result.refusals)
    ]
    for meter, counted in ((CLAIMED, Tally(map(type, results))), (TURNED_DOWN, Tally(map(type, refusals)))):
        for kind, count in counted.items():
            meter.labels(kind.__name__.lower()).inc(count)


log = logging.getLogger(__name__)

SAYS_SECONDS = 1.0
GONE_SECONDS = 3.5  # a paused scheduler meets others on its hosts after this time, which costs only claims


class Roster:
    """The live schedulers, which share the hosts with this one."""

    def __init__(self, clock: Clock, name: str = "") -> None:
        self.name = name or f"s{clock.uuid()[:8]}"
        self.waits = 0  # number of changes of the waiting requests
        self._clock = clock
        self._heard: dict[str, float] = {}
        self._live: tuple[str, ...] = (self.name,)

    @property
    def live(self) -> tuple[str, ...]:
        """Return the names of the live schedulers in order, including this one."""
        after = self._clock.monotonic() - GONE_SECONDS
        if any(at < after for at in self._heard.values()):
            self._heard = {name: at for name, at in self._heard.items() if at >= after}
            self._live = tuple(sorted({self.name, *self._heard}))
            log.info("%d schedulers share the hosts", len(self._live))
            LIVE.set(len(self._live))
        return self._live

    async def say(self) -> SchedulerAlive:
        return SchedulerAlive(scheduler=self.name, waits=self.waits)

    async def handle(self, message: SchedulerAlive) -> None:
        if message.scheduler == self.name:
            return
        self._heard[message.scheduler] = self._clock.monotonic()
        if message.scheduler not in self._live:
            log.info("scheduler %s takes part: %d share the hosts", message.scheduler, len(self._heard) + 1)
            self._live = tuple(sorted({self.name, *self._heard}))
            LIVE.set(len(self._live))


class WaitingSignal:
    """Sends an early heartbeat, so that other schedulers read the stored waiting requests again."""

    def __init__(self, roster: Roster, say: Callable[[SchedulerAlive], Awaitable[None]]) -> None:
        self._roster = roster
        self._say = say
        self._heartbeat = RateLimitedPublisher(self._publish, "that others wait now")
        self.run = self._heartbeat.run

    def changed(self) -> None:
        """Publish that waiting requests, or the resources they need, have changed in the database."""
        self._roster.waits = (self._roster.waits + 1) % 2**31  # what a Count may be
        self._heartbeat.due()

    async def _publish(self) -> None:
        await self._say(await self._roster.say())
