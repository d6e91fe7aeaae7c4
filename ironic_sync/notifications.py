"""Hearing Ironic: the exchange it sends its notifications to, unless its configuration says otherwise."""

from collections.abc import Sequence
from typing import Any

from bus.rabbit.foreign import ForeignListener, Gap, Hear
from ironic_sync.meters import GAPS

EXCHANGE = "ironic"
TOPICS = ("ironic_versioned_notifications",)
QUEUE = "berth.ironic_sync"


class Notifications(ForeignListener):
    """Ironic's notifications, for as long as `run` runs, however often the broker goes."""

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

    async def run(self, hear: Hear, gap: Gap) -> None:
        """Hand what is said to `hear`, in order; call `gap` when something may have passed us by."""

        def counted() -> None:
            GAPS.inc()
            gap()

        await super().run(hear, counted)
