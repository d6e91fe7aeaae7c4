"""Requests that come again: when, and for how long already. None comes for ever without a word in the log."""

import logging

from bus.clock import Clock
from bus.errors import Retry
from bus.vocabulary import Id
from scheduler_worker.order import Order

log = logging.getLogger(__name__)

PATIENCE = 30.0  # how long a request waits for what passes by itself
LONGEST_PAUSE = 5.0  # seconds between two looks of a request that has waited for longer than that
WAITING = 200_000  # requests of which it is remembered since when they wait


class Waiting:
    """Since when each request waits."""

    def __init__(self, clock: Clock, patience: float) -> None:
        self._clock = clock
        self._patience = patience
        self._since: dict[Id, float] = {}

    def over(self, order: Order) -> None:
        """It is placed, or has ended."""
        self._since.pop(order.request.request, None)

    def obstructed(self, order: Order) -> None:
        """Nothing now, but it may pass: look again later, for as long as our patience lasts."""
        if self._waited(order) >= self._patience:
            order.fail(order.obstacle)
        else:
            order.again = Retry(after=self._clock.chance.uniform(0.1, 0.5), why=order.obstacle)

    def contended(self, order: Order, why: str) -> None:
        """Others are at the same thing, and nothing can be said of it before they are done."""
        if order.again is not None:
            return
        after, waited = self._clock.chance.uniform(0.05, 0.2), self._waited(order)
        if waited >= self._patience:
            after = LONGEST_PAUSE
            log.warning("request %s has waited %.0f s: %s", order.request.request, waited, why)
        order.again = Retry(after=after, why=why)

    def _waited(self, order: Order) -> float:
        """For how long it has come again and again; 0 the first time."""
        while len(self._since) > WAITING:
            del self._since[next(iter(self._since))]
        now = self._clock.monotonic()
        return now - self._since.setdefault(order.request.request, now)
