"""An event loop with virtual time: it jumps to the next timer instead of waiting."""

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import wraps
from heapq import heapify, heappop, heappush
from typing import Any, ParamSpec, TypeVar

from bus.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")
_RESOLUTION = 1e-9  # seconds
_MANY_TIMERS = 100  # with more timers, cancelled timers are removed when they are more than half


class Stuck(AssertionError):
    """Error: the test waits, but no callback is ready and no timer is set, so it would wait forever."""


class _Handle:
    """A callback that is ready; replaces asyncio's handle, which is slower."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context")

    def __init__(self, callback: Any, args: Any, context: Context | None) -> None:
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None

    def cancelled(self) -> bool:
        return self._cancelled


class _Timer(float):
    """A callback that is called later. The number is its time, so that timers are compared as numbers."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_loop", "_scheduled")
    _args: Any
    _callback: Any
    _cancelled: bool
    _context: Context
    _loop: "VirtualLoop"
    _scheduled: bool

    def cancel(self) -> None:
        if not self._cancelled:
            self._loop._timer_cancelled_count += self._scheduled
        self._cancelled = True
        self._callback = self._args = None

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self


class _NumberedTask(asyncio.Task[Any]):
    """A task with a reproducible hash, so that a task group cancels its tasks in a reproducible order."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: "VirtualLoop", **more: Any) -> None:
        self._number = next(loop.numbers)
        super().__init__(coro, loop=loop, **more)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time, for callbacks and timers only: no threads and no sockets.

    Callbacks run in the same sequence as in asyncio's loop, but take half the time.
    """

    _ready: deque[Any]
    _scheduled: list[Any]
    _timer_cancelled_count: int
    _stopping: bool

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__()
        self.numbers = itertools.count()
        self.set_task_factory(lambda loop, coro, **more: _NumberedTask(coro, loop=self, **more))

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        handle = _Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        timer = _Timer(when)
        timer._callback, timer._args, timer._loop = callback, args, self
        timer._context = copy_context() if context is None else context
        timer._cancelled, timer._scheduled = False, True
        heappush(self._scheduled, timer)
        return timer

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call the function now, because virtual time passes while a thread runs."""
        result: asyncio.Future[T] = self.create_future()
        try:
            result.set_result(func(*args))
        except Exception as problem:
            result.set_exception(problem)
        return result

    def _run_once(self) -> None:
        self._forget_cancelled()
        timers, ready = self._scheduled, self._ready
        if not ready and not self._stopping:
            if not timers:
                raise Stuck("no timer is set and nothing is ready")
            self.now += max(timers[0] - self.now, 0.0)
        until = self.now + _RESOLUTION
        while timers and timers[0] < until:
            timer = heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as problem:
                self.call_exception_handler({"message": "an exception in a callback", "exception": problem})

    def _forget_cancelled(self) -> None:
        """Remove cancelled timers exactly as asyncio does, so that timers of equal times run in order."""
        timers = self._scheduled
        if len(timers) > _MANY_TIMERS and self._timer_cancelled_count > len(timers) / 2:
            for timer in timers:
                timer._scheduled = not timer._cancelled
            timers[:] = [timer for timer in timers if not timer._cancelled]
            heapify(timers)
            self._timer_cancelled_count = 0
            return
        while timers and timers[0]._cancelled:
            self._timer_cancelled_count -= 1
            heappop(timers)._scheduled = False


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like asyncio.run, but in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Return a test function that runs this coroutine function in virtual time."""

    @wraps(test)
    def sent(*args: P.args, **more: P.kwargs) -> None:
        run(test(*args, **more))

    return sent


class TurnedClock:
    """A clock whose time tests set."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.clock = Clock(now=lambda: self.now, chance=random.Random(7), monotonic=lambda: self.now)
