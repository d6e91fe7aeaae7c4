"""Publishes the notifications of Nova's scheduler about the calls that the bridge answers."""

import logging
import socket
from datetime import UTC, datetime

from bus.clock import Clock
from bus.rabbit.foreign.publisher import ForeignPublisher
from features.nova.core.scheduler_notifications import NotificationOptions, Phase, notifications_of
from features.nova.oslo.server import RpcCall, packed

log = logging.getLogger(__name__)


class SchedulerNotifications:
    """Publishes the notifications about scheduler calls in the background: no call waits for them or fails
    because of them.
    """

    def __init__(
        self, publisher: ForeignPublisher, options: NotificationOptions, clock: Clock, host: str = ""
    ) -> None:
        self._publisher = publisher
        self._options = options
        self._clock = clock
        self._host = host or socket.gethostname()

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
            self._publisher.add([(key, packed({**content, **ids, "timestamp": str(at)}))])

    async def run(self) -> None:
        """Publish the queued notifications until cancelled."""
        await self._publisher.run()
