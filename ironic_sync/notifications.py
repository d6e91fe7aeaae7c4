"""Receives Ironic's notifications from the exchange that Ironic uses by default."""

from collections.abc import Sequence
from typing import Any

from bus.rabbit.foreign import ForeignListener, Gap, Hear
from ironic_sync.meters import GAPS

EXCHANGE = "ironic"
TOPICS = ("ironic_versioned_notifications",)
QUEUE = "berth.ironic_sync"


class Notifications(ForeignListener):
    """A listener for Ironic's notifications that reconnects until it is stopped."""

    def __init__(
        self,
        url: str,
        *,
        exchange: str = EXCHANGE,
        topics: Sequence[str] = TOPICS,
        queue: str = QUEUE,
        **more: Any,
    ) -> None:
        super().__init__(
            url,
            exchange=exchange,
            keys=[f"{topic}.*" for topic in topics],
            queue=queue,
            name="berth ironic_sync",
            made_by="Ironic makes it when it first sends a notification, which takes a notification_level "
            "in its configuration",
            **more,
        )

    async def run(self, handle: Hear, gap: Gap) -> None:
        """Pass messages to `hear` in order; call `gap` when messages may be lost."""

        def counted() -> None:
            GAPS.inc()
            gap()

        await super().run(handle, counted)
