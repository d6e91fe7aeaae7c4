"""Metrics of waiting requests, and the signal to other schedulers that they changed."""

from collections.abc import Awaitable, Callable

from prometheus_client import Counter, Gauge

from bus.clock import RateLimitedPublisher
from bus.messages import SchedulerAlive
from scheduler_worker.extension import Roster

RESCUED = Counter("berth_scheduler_rescued", "requests that waited although a host fitted: found by a sweep")
WAITING_NOW = Gauge("berth_scheduler_waiting", "requests that wait for room with this scheduler")
QUOTA_WAITING = Gauge("berth_scheduler_waiting_for_quota", "waiting requests that their quota stops")


class WaitingSignal:
    """Sends an early heartbeat after waiting requests changed, so that other schedulers read them again."""

    def __init__(self, roster: Roster, publish: Callable[[SchedulerAlive], Awaitable[None]]) -> None:
        self._roster = roster
        self._send = publish
        self._heartbeat = RateLimitedPublisher(self._publish, "the early heartbeat")
        self.run = self._heartbeat.run

    def changed(self) -> None:
        """Send this scheduler's heartbeat early, because its waiting requests in the database changed."""
        self._roster.waits = (self._roster.waits + 1) % 2**31  # the range of the message field
        self._heartbeat.due()

    async def _publish(self) -> None:
        await self._send(await self._roster.message())
