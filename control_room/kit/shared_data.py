"""Caches data that several open pages show; data are read again when they are old or have changed."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from time import thread_time
from typing import Any, Generic, TypeVar

from bus.clock import Clock, monotonic

log = logging.getLogger(__name__)


T = TypeVar("T")


class BackgroundTasks:
    """The tasks that read data for pages. They end with the process."""

    def __init__(self, group: asyncio.TaskGroup, clock: Clock) -> None:
        self.clock = clock
        self.running: set[asyncio.Task[Any]] = set()
        self._group = group

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T | None]:
        """Start a background task, which is cancelled when the server stops. An error is logged, and the
        task's result is then None.
        """

        async def logged() -> T | None:
            try:
                return await work
            except Exception:
                log.exception("background task of the pages failed: a bug")
                return None

        task = self._group.create_task(logged())
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        task.add_done_callback(lambda _: work.close())  # if the task was cancelled before `work` began
        return task


@asynccontextmanager
async def background_tasks(clock: Clock) -> AsyncIterator[BackgroundTasks]:
    """Yield the background tasks; cancel those that still run at the end."""
    async with asyncio.TaskGroup() as group:
        tasks = BackgroundTasks(group, clock)
        try:
            yield tasks
        finally:
            for task in tasks.running:
                task.cancel()


K = TypeVar("K", bound=Hashable)


V = TypeVar("V")


SPACING = 0.15  # seconds between two queries for open pages, whatever they show


SOONEST = 0.1  # seconds between two updates of a page


GRACE = 5.0  # seconds for which a read continues without a reader: a page's event stream may need it soon


READ_TIMES = 4.0  # a value is used for this multiple of the time that its read took


_PROCESSOR_SHARE = 0.02  # of a processor that repeated updates may take


_QUERY_WEIGHT = 0.1  # processor seconds that a second of queries counts as; so queries take 1/6 of the time


_MOST = 64  # stored values at most


class Changes:
    """Counts changes of some data, and wakes the tasks that wait for the next change."""

    def __init__(self, *parts: "Changes") -> None:
        """Create a counter that also counts the changes of `parts`."""
        self.count = 0
        self._waiting: set[asyncio.Event] = set()
        self._wholes: list[Changes] = []
        self.include(*parts)

    def include(self, *parts: "Changes") -> None:
        """Count the later changes of `parts`, too."""
        for part in parts:
            part._wholes.append(self)

    def notify(self) -> None:
        """Count a change, wake the readers that wait for one, and notify the changes of which these are a
        part.
        """
        self.count += 1
        for event in self._waiting:
            event.set()
        for whole in self._wholes:
            whole.notify()

    @contextmanager
    def wake(self, event: asyncio.Event) -> Iterator[None]:
        """Set the given `asyncio.Event` at each change counted here, while the `with` block runs."""
        self._waiting.add(event)
        try:
            yield
        finally:
            self._waiting.discard(event)

    @property
    def is_watched(self) -> bool:
        """Return whether an open page waits for a change."""
        return bool(self._waiting)


class UpdateInterval:
    """Computes the interval between two updates of a page from the time that the last updates took."""

    def __init__(self, share: float = _PROCESSOR_SHARE, soonest: float = SOONEST) -> None:
        self.seconds = soonest
        self._share = share
        self._soonest = soonest

    @contextmanager
    def rendering(self) -> Iterator[None]:
        """Measure the processor time of a `with` block; the more it takes, the rarer the updates."""
        began = thread_time()
        yield
        self.add(thread_time() - began)

    @contextmanager
    def querying(self) -> Iterator[None]:
        """Measure how long a `with` block queries workers: the longer, the rarer the updates."""
        began = monotonic()
        yield
        self.add((monotonic() - began) * _QUERY_WEIGHT)

    def add(self, seconds: float) -> None:
        """Adapt the interval to the duration of an update: a smoothed mean, never below the shortest
        interval.
        """
        self.seconds = max(self._soonest, 0.7 * self.seconds + 0.3 * seconds / self._share)


@dataclass(frozen=True, slots=True)
class _Value(Generic[V]):
    value: V
    changes: int  # the count of changes when the read began
    began: float
    expires: float


@dataclass(eq=False, slots=True)
class _Read(Generic[V]):
    changes: int
    task: asyncio.Task[V | Exception | None] = field(init=False)
    readers: int = 0

    def end_unread(self) -> None:
        if not self.readers:
            self.task.cancel()


class SharedData(Generic[K, V]):
    """A cache of the data that pages show, each value under a key. Concurrent readers of a key share one
    read, which is cancelled soon after the last of these readers has stopped waiting.

    A reader causes a new read if the value has expired, or `changes` has counted a change since the last
    read. A value expires after `seconds`, or after `times` the duration of its read if that is longer. Reads
    that follow changes start at least `spacing` seconds apart.
    """

    def __init__(
        self,
        tasks: BackgroundTasks,
        read: Callable[[K], Awaitable[V]],
        *,
        changes: Changes | None = None,
        seconds: float = 0.0,
        times: float = 0.0,
        spacing: float = 0.0,
    ) -> None:
        self._tasks = tasks
        self._clock = tasks.clock
        self._read = read
        self._seconds, self._times, self._spacing = seconds, times, spacing
        self._changes = changes or Changes()
        self._known: OrderedDict[K, _Value[V]] = OrderedDict()
        self._reads: dict[K, _Read[V]] = {}
        self._turn = asyncio.Lock()  # taken by reads for open pages
        self._next = float("-inf")  # when the next read for an open page may begin
        self.interval = UpdateInterval()

    async def get(self, key: K, max_age: float = float("inf")) -> V:
        """Return a key's value: the cached one if it is current or younger than `spacing`, else read it.

        A value is current if younger than `max_age`, not expired, and `changes` counted no later change.
        """
        known = self._known.get(key)
        if known is not None:
            age = self._clock.monotonic() - known.began
            if age < self._spacing or (age < max_age and self._is_fresh(known)):
                return known.value
        return await self._joined(key)

    async def latest(self, key: K) -> V:
        """Return the value under a key of this cache, for a page open in a browser. Outdated values are read
        again: the slower the reads, the less often."""
        if (known := self._known.get(key)) is not None and self._is_fresh(known):
            return known.value
        async with self._turn:
            if (known := self._known.get(key)) is not None and self._is_fresh(known):
                return known.value
            if (pause := self._next - self._clock.monotonic()) > 0:
                await asyncio.sleep(pause)
            self._next = self._clock.monotonic() + max(self._spacing, self.interval.seconds)
            return await self._joined(key)

    def known(self, key: K) -> V | None:
        """Return the value under a key of this cache, even if it has expired; None if no value is cached."""
        known = self._known.get(key)
        return known.value if known is not None else None

    def refresh(self, key: K) -> asyncio.Task[V | Exception | None] | None:
        """Begin to read the value for a key of this cache in a background task, unless the cached value is
        current or being read; return the task, or None."""
        known = self._known.get(key)
        if key in self._reads or (known is not None and self._is_fresh(known)):
            return None
        read = self._begin(key)
        read.readers += 1
        return read.task

    def forget(self) -> None:
        """Discard all cached values, so that they are read again, after an operation has changed the data."""
        self._known.clear()
        self._reads.clear()

    def _is_fresh(self, known: _Value[V]) -> bool:
        return known.changes == self._changes.count and self._clock.monotonic() < known.expires

    async def _joined(self, key: K) -> V:
        changes = self._changes.count
        while True:
            read = self._reads.get(key) or self._begin(key)
            value = await self._result(read)
            if read.changes >= changes:
                return value

    async def _result(self, read: _Read[V]) -> V:
        read.readers += 1
        try:
            result: V | Exception | None = await asyncio.shield(read.task)
        finally:
            read.readers -= 1
            if not read.readers and not read.task.done():
                asyncio.get_running_loop().call_later(GRACE, read.end_unread)
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[return-value]  # errors are returned, so there is a value

    def _begin(self, key: K) -> _Read[V]:
        read = self._reads[key] = _Read[V](self._changes.count)
        read.task = self._tasks.start(self._run(key, read))
        return read

    async def _run(self, key: K, read: _Read[V]) -> V | Exception:
        began = self._clock.monotonic()
        try:
            with self.interval.querying():
                value = await self._read(key)
            if self._reads.get(key) is read:
                now = self._clock.monotonic()
                expires = now + max(self._seconds, self._times * (now - began))
                self._known[key] = _Value(value, read.changes, began, expires)
                self._known.move_to_end(key)
                while len(self._known) > _MOST:
                    self._known.popitem(last=False)
            return value
        except Exception as problem:
            return problem
        finally:
            if self._reads.get(key) is read:
                del self._reads[key]
