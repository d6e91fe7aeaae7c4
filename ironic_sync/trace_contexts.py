"""Trace contexts of notifications: a report to placement continues the trace of the notification behind
it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from bus.context import NO_STORY, StoredContext
from bus.messages import InventoryReported
from bus.protocol import Envelope
from bus.tracing import current_tracer
from ironic_sync.core.envelope import ReceivedNotification


class EventStories:
    """Trace contexts by node, from a notification until its report is published. Empty without tracing."""

    def __init__(self) -> None:
        self._stories: dict[str, StoredContext] = {}

    @contextmanager
    def hearing(self, said: ReceivedNotification) -> Iterator[None]:
        """Handle a notification inside the first span of a new trace."""
        if (tracer := current_tracer()) is None:
            yield
            return
        event = f"baremetal.node.{said.event}.{said.phase}"
        heard = Envelope(
            id=said.id, type=event, key=event, body=msgspec.Raw(b""), traceparent=tracer.beginning(event)
        )
        span = tracer.handling("ironic_sync", event, heard)
        if span is None:
            yield
            return
        self._stories[said.uuid] = StoredContext(said.id, said.id, heard.traceparent)
        try:
            yield
        except BaseException as problem:
            span.end(problem)
            raise
        span.end()

    def over(self, uuid: str) -> None:
        """Forget the node's trace: no further messages will be published for it."""
        self._stories.pop(uuid, None)

    def parted(
        self, reports: Sequence[InventoryReported]
    ) -> list[tuple[StoredContext, list[InventoryReported]]]:
        """Group reports by trace. Most reports have no trace."""
        if not self._stories:
            return [(NO_STORY, list(reports))]
        found: dict[StoredContext, list[InventoryReported]] = {}
        for report in reports:
            found.setdefault(self._stories.get(report.root, NO_STORY), []).append(report)
        return list(found.items())
