"""Times of requests that are retried, so that none is retried forever without a warning."""

from bus.clock import Clock
from bus.vocabulary import Id

WAITING = 200_000  # requests whose first retry is remembered


class Waiting:
    """Since when each request waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[Id, float] = {}

    def waited(self, request: Id) -> float:
        """Return for how long the request has been retried; 0 the first time."""
        since = self._since.get(request)
        return 0.0 if since is None else self._clock.monotonic() - since

    def begins(self, request: Id) -> None:
        """Record that the request is retried."""
        while len(self._since) >= WAITING:
            del self._since[next(iter(self._since))]
        self._since.setdefault(request, self._clock.monotonic())

    def over(self, request: Id) -> None:
        """Forget a request that was placed or has ended."""
        self._since.pop(request, None)
