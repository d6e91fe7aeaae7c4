"""Asks a question that many pages need once in a number of seconds."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bus.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

TIMES = 4.0  # an answer is good for so many times as long as it took
_MOST = 64  # answers that are kept


@dataclass(frozen=True, slots=True)
class Glance(Generic[V]):
    answer: V
    news: int  # messages received when the question was asked
    began: float
    good_until: float


class Glances(Generic[K, V]):
    """Ask again if there is a reader and the answer is too old. An answer is kept `times` as long as it
    took.
    """

    def __init__(
        self, ask: Callable[[K], Awaitable[V]], clock: Clock, seconds: float, times: float = TIMES
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._seconds = seconds
        self._times = times
        self._asking: dict[K, asyncio.Lock] = {}
        self._known: OrderedDict[K, Glance[V]] = OrderedDict()

    async def at(self, question: K) -> V:
        async with self._asking.setdefault(question, asyncio.Lock()):
            if (known := self._fresh(question)) is not None:
                return known.answer
            news, began = self._news(), self._clock.monotonic()
            answer = await self._ask(question)
            now = self._clock.monotonic()
            good_until = now + max(self._seconds, self._times * (now - began))
            self._known[question] = Glance(answer, news, began, good_until)
            self._known.move_to_end(question)
            while len(self._known) > _MOST:
                oldest, _ = self._known.popitem(last=False)
                self._asking.pop(oldest, None)
            return answer

    def forget(self) -> None:
        """Ask again for the next reader, after an act."""
        self._known.clear()

    def _fresh(self, question: K) -> Glance[V] | None:
        known = self._known.get(question)
        if known is None or known.news != self._news() or self._clock.monotonic() >= known.good_until:
            return None
        return known

    def _news(self) -> int:
        """Return the number of messages that may have changed the answer."""
        return 0
