"""Watches a process from a thread: ends the process if its event loop is blocked, warns about queue readers
that take no messages, logs the state of the process on SIGUSR1, and answers `berth system bundle`.

Time is counted in the thread's own periods, so a suspended process or machine does not count as blocked.
"""

import asyncio
import logging
import os
import queue
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from berth.support.processes import answering
from bus.clock import monotonic
from bus.delivery.queue_reader import READERS, QueueReader
from bus.protocol import Delivery

log = logging.getLogger(__name__)

EXIT_BLOCKED = 70
PERIOD = 1.0  # seconds
BLOCKED_SECONDS = 60.0  # time after which a worker process with a blocked event loop ends
STUCK_SECONDS = 120.0  # time without progress after which a queue reader is reported
WARN_SECONDS = 5.0  # time after which the stack of a blocked event loop is logged
_LOG_SECONDS = 5.0  # a blocked process may be unable to log, and must end nevertheless
_FRAMES = 4  # innermost stack frames that are shown of a task
_MESSAGES = 20  # messages of one handler call that are shown


@dataclass(frozen=True)
class WatchLimits:
    """The time limits after which a process without progress is reported or ended."""

    blocked: float = 0.0  # seconds until a process with a blocked event loop ends; 0: never
    stuck: float = 0.0  # seconds without progress until a queue reader is reported; 0: never
    warn: float = WARN_SECONDS
    period: float = PERIOD


@contextmanager
def watched(limits: WatchLimits, name: str = "", directory: Path | None = None) -> Iterator[None]:
    """Watch this process until the `with` block ends. The caller is the main thread, in its event loop. With
    a state directory, the process answers `berth system bundle` under the given name.
    """
    watch = ProcessWatch(asyncio.get_running_loop(), limits)
    before = signal.signal(signal.SIGUSR1, watch.on_signal)
    watch.start()
    try:
        with answering(name, directory, watch.state) if directory else nullcontext():
            yield
    finally:
        watch.stop()
        signal.signal(signal.SIGUSR1, before)


class ProcessWatch:
    """The thread that watches the event loop and the queue readers of this process."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limits: WatchLimits, end: Callable[[int], Any] = os._exit
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._end = end
        self._loop_thread = threading.get_ident()
        # `put` of a SimpleQueue is reentrant: a signal handler may interrupt another call of `put`
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="process watch", daemon=True)
        self._ran = True  # whether the loop has run since the last period
        self._blocked = 0.0  # seconds
        self._waiting: dict[QueueReader, tuple[int, float]] = {}  # messages taken, seconds since then

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._requests.put(False)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Request a report of all stacks in the log; runs in the signal handler."""
        self._requests.put(True)

    def _run(self) -> None:
        while True:
            try:
                if not self._requests.get(timeout=self._limits.period):
                    return
                log.warning("%s", self.state())
            except queue.Empty:
                try:
                    self._check_loop()
                except RuntimeError:  # the event loop is closed
                    return
                self._check_readers()

    def _check_loop(self) -> None:
        if self._ran:
            self._ran, self._blocked = False, 0.0
            self._loop.call_soon_threadsafe(self._on_loop)
            return
        before, self._blocked = self._blocked, self._blocked + self._limits.period
        if before < self._limits.warn <= self._blocked:
            self._log("the event loop has been blocked for %g s:\n%s", self._blocked, self._loop_stack())
        if 0 < self._limits.blocked <= self._blocked:
            text = "the event loop has been blocked for %g s; the process ends with exit code %d:\n%s"
            self._log(text, self._blocked, EXIT_BLOCKED, self._loop_stack())
            self._end(EXIT_BLOCKED)

    def _on_loop(self) -> None:
        self._ran = True

    def _log(self, text: str, *values: object) -> None:
        """Log an error in a new thread, and wait at most some seconds until that thread has ended.

        The blocked event loop may hold the log's lock, so this thread could block forever if it logged.
        """
        logging_ = threading.Thread(target=log.error, args=(text, *values), daemon=True)
        logging_.start()
        logging_.join(_LOG_SECONDS)

    def _check_readers(self) -> None:
        """Warn about each queue reader that has messages but has not given its handler a message for too
        long; name the oldest message.
        """
        if not self._limits.stuck:
            return
        waiting, self._waiting = self._waiting, {}
        for reader in tuple(READERS):
            if not reader.buffered:
                continue
            taken, seconds = waiting.get(reader, (reader.taken, 0.0))
            seconds = seconds + self._limits.period if taken == reader.taken else 0.0
            if seconds >= self._limits.stuck:
                _warn_of(reader, seconds)
                seconds = 0.0
            self._waiting[reader] = reader.taken, seconds

    def _loop_stack(self) -> str:
        return _stack_of(sys._current_frames().get(self._loop_thread))

    def state(self) -> str:
        """Return the state of the process as text: event loop, queue readers, threads and tasks."""
        lines = [f"the state of process {os.getpid()}:"]
        lines.append(f"event loop: blocked for {self._blocked:g} s")
        readers = tuple(READERS)
        lines.append(f"queue readers: {len(readers)}")
        for reader in readers:
            lines += _reader_lines(reader)
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            lines += [f"thread {names.get(ident, ident)}:", _stack_of(frame)]
        tasks = asyncio.all_tasks(self._loop)
        lines.append(f"tasks: {len(tasks)}, by their stacks")
        for stack, count in Counter(map(_task_stack, tasks)).most_common():
            lines.append(f"  {count} x {stack}")
        return "\n".join(lines)


def _warn_of(reader: QueueReader, seconds: float) -> None:
    calls = reader.calls
    text = (
        "%s: took no message for %g s, although %d wait in this process; %d of %d handler calls are running"
    )
    values = [reader.name, seconds, reader.buffered, len(calls), reader.concurrency]
    if not calls:
        log.warning(text, *values)
        return
    since, deliveries = min(calls, key=lambda call: call[0])
    age = monotonic() - since
    extra = {"envelopes": tuple(delivery.envelope for delivery in deliveries)}
    log.warning(text + ", the oldest for %.1f s: %s", *values, age, _named(deliveries), extra=extra)


def _reader_lines(reader: QueueReader) -> Iterator[str]:
    calls = reader.calls
    yield (
        f"  {reader.name}: {reader.buffered} messages wait in this process, {len(calls)} of "
        f"{reader.concurrency} handler calls are running, {reader.taken} messages were taken"
    )
    now = monotonic()
    for since, deliveries in calls:
        yield f"    for {now - since:.1f} s: {_named(deliveries)}"


def _named(deliveries: Sequence["Delivery"]) -> str:
    named = [
        f"{delivery.envelope.type} {delivery.envelope.id} (try {delivery.envelope.attempt})"
        for delivery in deliveries[:_MESSAGES]
    ]
    more = len(deliveries) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _stack_of(frame: FrameType | None) -> str:
    return "".join(traceback.format_stack(frame)).rstrip() if frame is not None else "  (ended)"


def _task_stack(task: "asyncio.Task[Any]") -> str:
    coroutine = task.get_coro()
    frames = [
        f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
        for frame in task.get_stack(limit=_FRAMES)
    ]
    return f"{getattr(coroutine, '__qualname__', coroutine)} at {' > '.join(frames) or 'its end'}"
