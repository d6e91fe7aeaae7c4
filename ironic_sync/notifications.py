"""Receives Ironic's notifications from Ironic's exchange, and defines the metrics of ironic_sync."""

from collections.abc import Sequence
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from bus.rabbit.foreign.listener import ForeignListener, Gap, HandleBodies

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

EVENTS = Counter("berth_ironic_events", "notifications, by what came of them", ["event", "outcome"])
SKIPPED = Counter("berth_ironic_skipped", "messages on Ironic's exchange that berth ignores", ["reason"])
REPORTED_SECONDS = Histogram(
    "berth_ironic_reported_seconds",
    "from the time in a notification until its report is stored by the broker",
    buckets=_SECONDS,
)
CLAIMABLE_SECONDS = Histogram(
    "berth_ironic_claimable_seconds",
    "from the time of the notification or read that opens a node until placement has stored it",
    buckets=_SECONDS,
)
LAG_SECONDS = Gauge("berth_ironic_lag_seconds", "age of the last notification when it was received")
UNRESOLVED = Gauge("berth_ironic_unresolved_nodes", "nodes that wait to be read")
READS = Counter("berth_ironic_reads", "confirming reads of a node, by what came of them", ["outcome"])
READ_SECONDS = Histogram("berth_ironic_read_seconds", "how long a confirming read took", buckets=_SECONDS)
SUBSCRIBED = Gauge("berth_ironic_hearing", "1 while Ironic's notifications can be received")
GAPS = Counter("berth_ironic_gaps", "times when notifications may have passed us by")
REQUEST_SECONDS = Histogram(
    "berth_ironic_request_seconds",
    "requests to Ironic's API, by the status of the answer",
    ["method", "status"],
    buckets=_SECONDS,
)

SWEEP_SECONDS = Histogram(
    "berth_ironic_sweep_seconds", "how long looking for differences took", ["kind"], buckets=_SECONDS
)
SWEEPS_FAILED = Counter("berth_ironic_sweeps_failed", "sweeps that Ironic or placement could not be had for")
SWEPT_AT = Gauge("berth_ironic_swept_at", "when the last full sweep began that came to its end")
NODES = Gauge("berth_ironic_nodes", "nodes that the last full sweep read")
DIFFERENCES = Counter("berth_ironic_differences", "differences found by sweeps, by sort", ["what"])
UNREPAIRED = Gauge("berth_ironic_unrepaired", "differences that wait for people, or to be allowed", ["what"])


EXCHANGE = "ironic"
TOPICS = ("ironic_versioned_notifications",)
QUEUE = "berth.ironic_sync"


class Notifications(ForeignListener):
    """A consumer of Ironic's notifications that reconnects until it is stopped."""

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

    async def run(self, handle: HandleBodies, gap: Gap) -> None:
        """Pass batches of Ironic's notifications to `handle`; call `gap` if notifications may be lost."""

        def counted() -> None:
            GAPS.inc()
            gap()

        await super().run(handle, counted)
