"""The only door to time and chance: tests and simulations put their own behind it."""

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Clock:
    """Wall time in seconds since the epoch, and a source of randomness that a seed can pin."""

    now: Callable[[], float] = time.time
    chance: random.Random = field(default_factory=random.Random)

    def uuid(self) -> str:
        return str(uuid.UUID(int=self.chance.getrandbits(128), version=4))


def monotonic() -> float:
    """For measuring how long a thing took; never sent anywhere."""
    return time.monotonic()
