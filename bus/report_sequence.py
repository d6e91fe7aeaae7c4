"""Sequence numbers of reports that never go back, even if the wall clock does."""

from bus.clock import Clock
from bus.vocabulary import MAX_ORDINAL


class ReportSequence:
    """A source of increasing numbers, which follow the wall clock in microseconds while it moves forward."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0

    def next(self) -> int:
        self._last = min(max(self._last + 1, int(self._clock.now() * 1_000_000)), MAX_ORDINAL)
        return self._last

    def follow(self, told: int) -> None:
        """Continue after this number, which an earlier run may have used with a clock ahead of ours."""
        self._last = max(self._last, told)
