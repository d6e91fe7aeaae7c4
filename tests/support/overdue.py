"""A test that waits for ever fails, says what everything in its process was doing, and lets the others run.

What nothing in Python can interrupt ends with its process a while later (`faulthandler_timeout` in the
Makefile): pytest-xdist says which test that was, and goes on in a new process.
"""

import asyncio
import faulthandler
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SECONDS = float(os.environ.get("BERTH_TEST_SECONDS", "300"))  # the longest test takes about a third of it


class Overdue(SystemExit):
    """As this is what an event loop lets out of whichever task was interrupted."""


@contextmanager
def limited(what: str, seconds: float = SECONDS) -> Iterator[None]:
    """Of the main thread, which alone is interrupted by a signal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)  # what is taken down now may wait for ever as well
        sys.stderr.write(f"{what} is not over after {seconds:g} s\n{_all_that_is_done()}")
        raise Overdue(f"{what} is not over after {seconds:g} s: what it waits for is in what it wrote")

    before = signal.signal(signal.SIGALRM, ring)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, before)


def _all_that_is_done() -> str:
    """Where each task of the loop that runs is, and each thread."""
    said = io.StringIO()
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # none runs
        tasks = set()
    for task in tasks:
        task.print_stack(file=said)
    for thread in threading.enumerate():
        said.write(f"Thread {thread.name}, daemon: {thread.daemon}\n")
    return said.getvalue() + _stacks()


def _stacks() -> str:
    reading, writing = os.pipe()
    with open(reading, errors="replace") as stacks:
        os.set_blocking(writing, False)  # the first 64 KiB do
        try:
            faulthandler.dump_traceback(writing)
        finally:
            os.close(writing)
        return stacks.read()
