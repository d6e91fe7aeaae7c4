"""Publishes the notifications of Nova's scheduler about the calls that the bridge answers."""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

from bus.clock import Backoff, Clock
from bus.errors import BrokerRefused, Unavailable
from features.nova.core.scheduler_notifications import NotificationOptions, Phase, notifications_of
from features.nova.oslo.server import RpcCall, packed

log = logging.getLogger(__name__)

MOST_WAITING = 1000  # notifications; the oldest are dropped while the broker is unreachable


class Publishes(Protocol):
    """Publishes messages on the exchange of Nova's notifications."""

    async def ready(self) -> None: ...
    async def publish(self, messages: Sequence[tuple[str, bytes]]) -> None: ...
    async def close(self) -> None: ...


class SchedulerNotifications:
    """Publishes the notifications about scheduler calls in the background: no call waits for them or fails
    because of them.
    """

    def __init__(
        self, publisher: Publishes, options: NotificationOptions, clock: Clock, host: str = ""
    ) -> None:
        self._publisher = publisher
        self._options = options
        self._clock = clock
        self._host = host or socket.gethostname()
        self._waiting: deque[tuple[str, bytes]] = deque(maxlen=MOST_WAITING)
        self._added = asyncio.Event()

    def add(self, call: RpcCall, phase: Phase) -> None:
        """Queue the notifications about a call of select_destinations."""
        spec = call.args["spec_obj"]
        try:
            made = list(notifications_of(spec, call.context, phase, self._host, self._options))
        except Exception:  # the RequestSpec is decoded, but has fields that the scheduler does not read
            log.exception("no notification about %s: its RequestSpec is not readable", call.message_id)
            return
        at = datetime.fromtimestamp(self._clock.now(), UTC).replace(tzinfo=None)
        for key, content in made:
            ids = {"message_id": self._clock.uuid(), "_unique_id": self._clock.uuid().replace("-", "")}
            self._waiting.append((key, packed({**content, **ids, "timestamp": str(at)})))
        self._added.set()

    async def run(self) -> None:
        """Publish the queued notifications until cancelled."""
        backoff = Backoff(self._clock)
        try:
            while True:
                await self._added.wait()
                try:
                    await self._publisher.ready()
                    self._added.clear()
                    messages, self._waiting = self._waiting, deque(maxlen=MOST_WAITING)
                    await self._publisher.publish(messages)
                except (Unavailable, BrokerRefused) as problem:
                    log.warning("notifications of the scheduler wait: %s", problem)
                    await backoff.pause()
                else:
                    backoff = Backoff(self._clock)
        finally:
            await self._publisher.close()
