"""Numbers by which the reports of one owner are ordered, whichever way its wall clock jumps."""

from bus.clock import Clock
from bus.vocabulary import MAX_ORDINAL


class ReportSequence:
    """Each number is higher than all before. They follow the microsecond, as long as that moves forward."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0

    def next(self) -> int:
        self._last = min(max(self._last + 1, int(self._clock.now() * 1_000_000)), MAX_ORDINAL)
        return self._last

    def follow(self, told: int) -> None:
        """This one was told before, perhaps by an earlier run whose clock was ahead of ours."""
        self._last = max(self._last, told)
