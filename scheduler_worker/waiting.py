"""Requests that come again: for how long already. None comes for ever without a word in the log."""

from bus.clock import Clock
from bus.vocabulary import Id

WAITING = 200_000  # requests of which it is remembered since when they wait


class Waiting:
    """Since when each request waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[Id, float] = {}

    def waited(self, request: Id) -> float:
        """For how long it has come again and again; 0 the first time."""
        since = self._since.get(request)
        return 0.0 if since is None else self._clock.monotonic() - since

    def begins(self, request: Id) -> None:
        """It is to come again."""
        while len(self._since) >= WAITING:
            del self._since[next(iter(self._since))]
        self._since.setdefault(request, self._clock.monotonic())

    def over(self, request: Id) -> None:
        """It is placed, or has ended."""
        self._since.pop(request, None)
