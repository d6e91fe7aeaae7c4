"""Each process of berth answers requests for its support data at a Unix socket, from a separate thread, so it
also answers while its event loop is blocked. The sockets are in the directory `support` of the state
directory, readable only by the user of the process.
"""

import asyncio
import logging
import os
import platform
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from prometheus_client import generate_latest

from berth import __version__
from berth.logs import RECENT
from berth.support.sampling import THREAD, sampled_stacks
from bus.errors import NOT_JSON, Unavailable

log = logging.getLogger(__name__)

MOST_SECONDS = 60.0  # of sampling
_ANSWER_SECONDS = 10.0  # in addition to the sampling
_LINE_SECONDS = 5.0  # to send a request


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
    """Answer requests for this process's support data until the `with` block ends. `state` returns a text
    and is called in another thread. A directory that cannot be written is logged, and nothing is answered.
    """
    try:
        path = _socket_path(directory)
        server = _Server(path, name, state)
    except OSError as problem:
        log.info("%s cannot be written, so `berth debug` cannot ask this process: %s", directory, problem)
        yield
        return
    threading.Thread(target=server.serve_forever, name=THREAD, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        path.unlink(missing_ok=True)


def _socket_path(directory: Path) -> Path:
    folder = directory / "support"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for other in sockets(directory):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(other))
            except ConnectionRefusedError:  # its process was killed
                other.unlink(missing_ok=True)
            except OSError:
                pass
    path = folder / f"{os.getpid()}.sock"
    path.unlink(missing_ok=True)
    return path


def sockets(directory: Path) -> list[Path]:
    """Return the sockets of the processes with this state directory."""
    return sorted((directory / "support").glob("*.sock"))


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: Path, name: str, state: Callable[[], str]) -> None:
        super().__init__(str(path), _Request, bind_and_activate=False)
        self.process_name, self.state = name, state
        try:
            self.server_bind()
            path.chmod(0o600)  # before it listens, so that no other user can connect
            self.server_activate()
        except BaseException:
            self.server_close()
            raise

    def handle_error(self, request: object, client_address: object) -> None:
        log.info("a request for support data failed", exc_info=True)


class _Request(socketserver.StreamRequestHandler):
    """A request: a line with the number of seconds to sample stacks. The answer is a `ProcessSupport`."""

    timeout = _LINE_SECONDS
    server: _Server

    def handle(self) -> None:
        threading.current_thread().name = THREAD
        seconds = min(max(float(self.rfile.readline(32)), 0.0), MOST_SECONDS)
        stacks = sampled_stacks(seconds)
        found = ProcessSupport(
            name=self.server.process_name,
            pid=os.getpid(),
            version=__version__,
            python=platform.python_version(),
            state=self.server.state(),
            metrics=generate_latest().decode(),
            warnings=list(RECENT),
            stacks=dict(stacks),
        )
        with suppress(BrokenPipeError):
            self.wfile.write(msgspec.json.encode(found))


async def ask(path: Path, seconds: float) -> ProcessSupport:
    """Return the support data of the process at a socket; raise OSError or Unavailable if it has none."""
    async with asyncio.timeout(seconds + _ANSWER_SECONDS):
        reader, writer = await asyncio.open_unix_connection(str(path))
        try:
            writer.write(f"{seconds}\n".encode())
            return msgspec.json.decode(await reader.read(), type=ProcessSupport)
        except NOT_JSON as problem:
            raise Unavailable(f"its answer is not readable: {problem}") from None
        finally:
            writer.close()
