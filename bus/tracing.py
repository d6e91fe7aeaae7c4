"""Where spans are made, for those who want them; nobody does unless a tracer is put here.

A span is the handling of one message by one row of a worker's table, or a question until it is answered.
While there is a tracer, what is said in answer to a message carries the very span it was handled in
(`traceparent`, as W3C has it), so a boot is one trace through every worker. Without one that
costs a comparison.
"""

from collections.abc import Sequence
from typing import Protocol

from bus.protocol import Envelope

# What begins a trace where nothing led to it; else heartbeats would be most of all traces.
BEGINNINGS = frozenset(
    {
        "BuildRequested", "BuildDeleteRequested", "BuildCancelRequested", "BuildAdoptRequested",
        "MoveRequested", "MoveSteered", "NodeChanged", "InventoryReported",
    }
)  # fmt: skip


class Span(Protocol):
    """One that is open."""

    def end(self, problem: BaseException | None = None) -> None: ...


class Tracer(Protocol):
    """Who makes spans, and has them exported."""

    def handling(self, worker: str, row: str, envelope: Envelope) -> Span | None:
        """A span for this message, child of what it came with. From here on its envelope carries this one."""

    def asking(self, query: str, causes: Sequence[Envelope]) -> tuple[Span, str] | None:
        """A span for a question that these led to, child of the first's and linked with the others'; and
        what the question carries."""

    def beginning(self, type_: str) -> str:
        """What the first message of a story carries: a span of its own, which has no parent."""


_tracer: Tracer | None = None


def current_tracer() -> Tracer | None:
    return _tracer


def trace_by(tracer: Tracer | None) -> None:
    """Of this whole process, from now on."""
    global _tracer
    _tracer = tracer
