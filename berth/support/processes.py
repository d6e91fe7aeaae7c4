"""Answers requests for a process's support data at a Unix socket, from a separate thread, so a process also
answers while its event loop is blocked. The sockets are in the directory `support` of the state directory,
readable only by the user of the process.
"""

import asyncio
import logging
import os
import platform
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import msgspec
from prometheus_client import generate_latest

from berth import __version__
from berth.logs import RECENT
from bus.clock import monotonic
from bus.errors import NOT_JSON, Unavailable

log = logging.getLogger(__name__)

THREAD = "support"  # name of the threads that collect support data, which are not sampled
PERIOD = 0.01  # seconds between two samples
MOST_SECONDS = 60.0  # longest sampling of stacks
_ANSWER_SECONDS = 10.0  # for a process to answer, in addition to the time of sampling
_LINE_SECONDS = 5.0  # time limit to send a request, or to read part of the answer
_DEPTH = 150  # innermost frames of a sampled stack
_PROBE_SECONDS = 0.5  # time limit to connect to a socket that may be left behind


class ProcessSupport(msgspec.Struct, kw_only=True):
    """The support data of a process."""

    name: str
    pid: int
    version: str
    python: str = ""
    state: str = ""  # event loop, queue readers, threads and tasks, as text
    metrics: str = ""  # in Prometheus' text format
    warnings: list[str] = []  # the last warnings and errors in its log
    stacks: dict[str, int] = {}  # how often each stack was sampled


@contextmanager
def answering(name: str, directory: Path, state: Callable[[], str]) -> Iterator[None]:
    """Answer requests for this process's support data until the `with` block ends. `state` returns a text and
    is called in another thread. If the directory cannot be written, log the problem and answer no requests.
    """
    try:
        path, listener = _listen(directory)
    except OSError as problem:
        log.info(
            "%s cannot be written, so `berth system bundle` cannot ask this process: %s", directory, problem
        )
        yield
        return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # the listener is closed
                return
            threading.Thread(target=_answer, args=(connection, name, state), name=THREAD, daemon=True).start()

    threading.Thread(target=accept, name=THREAD, daemon=True).start()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        listener.shutdown(socket.SHUT_RDWR)  # closing alone would not end `accept`
        listener.close()


def sockets(directory: Path) -> list[Path]:
    """Return the sockets of the processes with this state directory."""
    return sorted((directory / "support").glob("*.sock"))


def _listen(directory: Path) -> tuple[Path, socket.socket]:
    folder = directory / "support"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for other in sockets(directory):
        if _is_left_behind(other):
            other.unlink(missing_ok=True)
    path = folder / f"{os.getpid()}.sock"
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        path.chmod(0o600)  # before it listens, so that no other user can connect
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return path, listener


def _is_left_behind(path: Path) -> bool:
    """Return whether a socket is left from a process that no longer exists: no process has the id in the file
    name, and a connection is refused. Both are checked because a process in another container has no id here,
    and a process that has just started does not listen yet.
    """
    with suppress(ProcessLookupError, PermissionError, ValueError):
        os.kill(int(path.stem), 0)
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
    return False


def _answer(connection: socket.socket, name: str, state: Callable[[], str]) -> None:
    """Read from a connection the number of seconds to sample stacks, and send a `ProcessSupport` in JSON."""
    try:
        with connection, connection.makefile("rb") as lines:
            connection.settimeout(_LINE_SECONDS)
            stacks = sampled_stacks(min(max(float(lines.readline(32)), 0.0), MOST_SECONDS))
            found = ProcessSupport(
                name=name,
                pid=os.getpid(),
                version=__version__,
                python=platform.python_version(),
                state=state(),
                metrics=generate_latest().decode(),
                warnings=list(RECENT),
                stacks=dict(stacks),
            )
            connection.sendall(msgspec.json.encode(found))
    except (OSError, ValueError) as problem:  # the client has left, or sent something else
        log.info("a request for support data failed: %s", problem)


def sampled_stacks(seconds: float, period: float = PERIOD) -> Counter[str]:
    """Sample all threads for some seconds, except threads that collect support data. Return how often each
    stack was seen, as a text "thread;module.function;module.function" with the outermost function first.
    """
    counts: Counter[str] = Counter()
    end = monotonic() + seconds
    while (now := monotonic()) < end:
        names = {thread.ident: thread.name.rstrip("0123456789_-") for thread in threading.enumerate()}
        names = {id_: name for id_, name in names.items() if name != THREAD}
        frames = sys._current_frames()
        counts.update(";".join([names[id_], *_calls(frame)]) for id_, frame in frames.items() if id_ in names)
        del frames
        time.sleep(max(now + period - monotonic(), 0.0))
    return counts


def _calls(frame: FrameType | None) -> list[str]:
    calls: list[str] = []
    while frame is not None and len(calls) < _DEPTH:
        calls.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}".replace(";", ":"))
        frame = frame.f_back
    return calls[::-1]


async def ask(path: Path, seconds: float) -> ProcessSupport:
    """Return the support data of the process at a socket; raise OSError or Unavailable if it sends none."""
    async with asyncio.timeout(seconds + _ANSWER_SECONDS):
        reader, writer = await asyncio.open_unix_connection(str(path))
        try:
            writer.write(f"{seconds}\n".encode())
            return msgspec.json.decode(await reader.read(), type=ProcessSupport)
        except NOT_JSON as problem:
            raise Unavailable(f"its answer is not readable: {problem}") from None
        finally:
            writer.close()
