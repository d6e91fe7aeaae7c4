"""A time limit for tests: a test that hangs fails and prints all stacks of its process; other tests go on.

A hang that no Python code can interrupt ends the process later (`faulthandler_timeout` in the Makefile);
pytest-xdist then names the test and continues in a new process.
"""

import asyncio
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SECONDS = float(os.environ.get("BERTH_TEST_SECONDS", "600"))  # five times the longest test on two cores


class Overdue(SystemExit):
    """The test exceeded its limit. A SystemExit leaves an event loop from whichever task was interrupted."""


@contextmanager
def limited(what: str, seconds: float = SECONDS) -> Iterator[None]:
    """Raise Overdue in the main thread after so many seconds, and again at that interval while it goes on.

    One signal is not enough: if it arrives just before the thread blocks in a lock, nothing wakes the thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        sys.stderr.write(f"{what} is not over after {seconds:g} s\n{_all_that_is_done()}")
        raise Overdue(f"{what} is not over after {seconds:g} s: what it waits for is in what it wrote")

    before = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)
        signal.signal(signal.SIGALRM, before)


def _all_that_is_done() -> str:
    """Return the stack of each task of the running loop and of each thread."""
    said = io.StringIO()
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        tasks = set()
    for task in tasks:
        task.print_stack(file=said)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        said.write(f"Thread {names.get(ident)}\n")
        traceback.print_stack(frame, file=said)
    return said.getvalue()
