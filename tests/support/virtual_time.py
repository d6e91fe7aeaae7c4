"""An event loop with virtual time: it jumps to the next timer instead of waiting."""

import asyncio
import itertools
import random
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from bus.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")


class Stuck(AssertionError):
    """Nothing is left that could ever happen, and yet the test waits."""


class _Jumping(selectors.DefaultSelector):
    """Where a real selector would sleep, this one moves the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("no timer is set and nothing is ready")
        self.now += max(timeout, 0.0)
        return []


class _NumberedTask(asyncio.Task[Any]):
    """Sets of tasks go by their numbers: a group cancels its tasks in an order that no address decides."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: "VirtualLoop", **more: Any) -> None:
        self._number = next(loop.numbers)
        super().__init__(coro, loop=loop, **more)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.SelectorEventLoop):
    """Threads and sockets have no place here: everything that happens is a callback or a timer."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)
        self._clock_resolution = 1e-9
        self.numbers = itertools.count()
        self.set_task_factory(lambda loop, coro, **more: _NumberedTask(coro, loop=self, **more))

    def time(self) -> float:
        return self._jumping.now


def run(work: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test, run so."""

    @wraps(test)
    def told(*args: P.args, **more: P.kwargs) -> None:
        run(test(*args, **more))

    return told


class TurnedClock:
    """A clock that tests turn."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.clock = Clock(now=lambda: self.now, chance=random.Random(7), monotonic=lambda: self.now)
