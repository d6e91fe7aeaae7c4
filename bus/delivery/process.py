"""Objects that all workers of one process share."""

import asyncio
from dataclasses import dataclass

from bus.clock import Clock
from bus.protocol import Transport


@dataclass(frozen=True, kw_only=True)
class Process:
    """Objects that all workers of a process share, such as the broker connection and the stop event."""

    transport: Transport
    clock: Clock
    replica: str
    stopping: asyncio.Event
    drain: float  # seconds to complete messages in progress after `stopping` is set
    turns: asyncio.Lock  # held by the only worker of the process that handles suspects now
