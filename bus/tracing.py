"""Hooks for tracing. Without a tracer they cost one comparison.

A span covers the handling of one message by one row of a worker's table, or a query until its answer. With a
tracer, messages carry the span in which they were published (`traceparent`, as W3C defines it), so a boot is
one trace through all workers.
"""

from collections.abc import Sequence
from typing import Protocol

from bus.protocol import Envelope

# Only the messages begin a trace; otherwise most traces would be heartbeats.
BEGINNINGS = frozenset(
    {
        "BuildRequested", "BuildDeleteRequested", "BuildCancelRequested", "BuildAdoptRequested",
        "MoveRequested", "MoveSteered", "NodeChanged", "InventoryReported",
    }
)  # fmt: skip


class Span(Protocol):
    def end(self, problem: BaseException | None = None) -> None: ...


class Tracer(Protocol):
    """Creates spans and exports them."""

    def handling(self, worker: str, row: str, envelope: Envelope) -> Span | None:
        """Return a span for handling this message, a child of its traceparent, which is replaced by the new
        span.
        """

    def asking(self, query: str, causes: Sequence[Envelope]) -> tuple[Span, str] | None:
        """Return a span for a query, child of the first cause and linked with the others, and its
        traceparent.
        """

    def beginning(self, type_: str) -> str:
        """Return the traceparent of a new root span for the first message of a trace."""


_tracer: Tracer | None = None


def current_tracer() -> Tracer | None:
    return _tracer


def trace_by(tracer: Tracer | None) -> None:
    """Set the tracer of this process."""
    global _tracer
    _tracer = tracer
