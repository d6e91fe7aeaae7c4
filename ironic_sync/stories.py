"""What is told of a node belongs to the trace of what Ironic said of it, where it was read in between too."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from bus.context import NO_STORY, Story
from bus.messages import InventoryReported
from bus.protocol import Envelope
from bus.tracing import current_tracer
from ironic_sync.core.envelope import HeardNotification


class EventStories:
    """By node, from when Ironic says something until placement was told; empty while nobody has traces."""

    def __init__(self) -> None:
        self._stories: dict[str, Story] = {}

    @contextmanager
    def hearing(self, said: HeardNotification) -> Iterator[None]:
        """It is taken in now: that is the first span of the trace."""
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
        self._stories[said.uuid] = Story(said.id, said.id, heard.traceparent)
        try:
            yield
        except BaseException as problem:
            span.end(problem)
            raise
        span.end()

    def over(self, uuid: str) -> None:
        """It has led to all that it will."""
        self._stories.pop(uuid, None)

    def parted(self, reports: Sequence[InventoryReported]) -> list[tuple[Story, list[InventoryReported]]]:
        """Those of one story together; most have none."""
        if not self._stories:
            return [(NO_STORY, list(reports))]
        found: dict[Story, list[InventoryReported]] = {}
        for one in reports:
            found.setdefault(self._stories.get(one.root, NO_STORY), []).append(one)
        return list(found.items())
