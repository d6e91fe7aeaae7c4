"""The only door to time and chance: tests and simulations put their own behind it."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_VERSION_4 = 0x4000 << 64 | 0x8000 << 48  # the version and the variant
_RANDOM = ~(0xF000 << 64 | 0xC000 << 48)  # all other bits


@dataclass(frozen=True, slots=True)
class Clock:
    """What time it is, how much of it passes, and a source of randomness that a seed can pin."""

    now: Callable[[], float] = time.time  # wall time since the epoch: to be told and stored; it may jump
    chance: random.Random = field(default_factory=random.Random)
    monotonic: Callable[[], float] = time.monotonic  # never goes back: for durations; never told or stored

    def uuid(self) -> str:
        """A random one, as uuid.uuid4() makes them; in half the time, for every message has one."""
        digits = f"{self.chance.getrandbits(128) & _RANDOM | _VERSION_4:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def monotonic() -> float:
    """For measuring durations where no clock is injected."""
    return time.monotonic()
