"""The only door to time and chance: tests and simulations put their own behind it."""

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Clock:
    """What time it is, how much of it passes, and a source of randomness that a seed can pin."""

    now: Callable[[], float] = time.time  # wall time since the epoch: to be told and stored; it may jump
    chance: random.Random = field(default_factory=random.Random)
    monotonic: Callable[[], float] = time.monotonic  # never goes back: for durations; never told or stored

    def uuid(self) -> str:
        return str(uuid.UUID(int=self.chance.getrandbits(128), version=4))


def monotonic() -> float:
    """For measuring durations where no clock is injected."""
    return time.monotonic()
