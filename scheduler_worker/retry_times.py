"""Times of requests that are retried, so that none is retried forever without a warning."""

from bus.clock import Clock
from bus.vocabulary import Id

REMEMBERED = 200_000  # requests; the oldest are forgotten


class RetryTimes:
    """Since when each request is retried."""

    def __init__(self, clock: Clock, remembered: int = REMEMBERED) -> None:
        self._clock = clock
        self._remembered = remembered
        self._since: dict[Id, float] = {}

    def retried_for(self, request: Id) -> float:
        """Return for how many seconds the request has been retried; 0 the first time."""
        since = self._since.get(request)
        return 0.0 if since is None else self._clock.monotonic() - since

    def begin(self, request: Id) -> None:
        """Record that the request is retried."""
        while len(self._since) >= self._remembered:
            del self._since[next(iter(self._since))]
        self._since.setdefault(request, self._clock.monotonic())

    def end(self, request: Id) -> None:
        """Forget a request that was placed or has ended."""
        self._since.pop(request, None)
