"""What many look at at once is asked for once in so many seconds."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from bus.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST = 64  # questions whose answers are kept


class Glances(Generic[K, V]):
    """Asks when somebody looks and what is known is too old; an answer is kept `times` as long as it took."""

    def __init__(
        self, ask: Callable[[K], Awaitable[V]], clock: Clock, seconds: float, times: float = 4.0
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._seconds = seconds
        self._times = times
        self._asking: dict[K, asyncio.Lock] = {}
        self._known: OrderedDict[K, tuple[float, V]] = OrderedDict()

    async def at(self, question: K) -> V:
        async with self._asking.setdefault(question, asyncio.Lock()):
            good_until, answer = self._known.get(question, (float("-inf"), None))
            began = self._clock.monotonic()
            if answer is not None and began < good_until:
                return answer
            answer = await self._ask(question)
            now = self._clock.monotonic()
            self._known[question] = (now + max(self._seconds, self._times * (now - began)), answer)
            self._known.move_to_end(question)
            while len(self._known) > _MOST:
                oldest, _ = self._known.popitem(last=False)
                self._asking.pop(oldest, None)
            return answer

    def forget(self) -> None:
        """Something was done: whoever looks next asks anew."""
        self._known.clear()
