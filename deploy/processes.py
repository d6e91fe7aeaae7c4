"""Runs private servers as processes: finds programs and ports, starts, stops and watches the servers.

If the process that started a server dies without stopping it (a test run killed with SIGKILL), a watchdog
ends the server. The watchdog is a ``sh`` that blocks on a pipe whose other end only the starting process
holds; the kernel closes that end however the process dies. PR_SET_PDEATHSIG is not used because it exists
only on Linux and fires when the starting *thread* ends.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

START_TIMEOUT = 300.0  # a machine may be busy
STOP_TIMEOUT = 30.0

# Directories of package managers that may be missing in PATH (Homebrew on Apple and Intel).
_EXTRA_PATH = ("/opt/homebrew/bin", "/opt/homebrew/sbin", "/usr/local/bin", "/usr/local/sbin")


class BinariesMissing(RuntimeError):
    """Error: the programs of a server are not installed; the message says how to install them."""


class ServerFailed(RuntimeError):
    """Error: a server did not start or has failed; the message has the end of its log."""


def search_path() -> str:
    return os.pathsep.join((os.environ.get("PATH", os.defpath), *_EXTRA_PATH))


def environment_without(*prefixes: str) -> dict[str, str]:
    """Return this process's environment variables, except those whose names begin with a prefix."""
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def newest_first(base: Path, pattern: str) -> list[Path]:
    def version(path: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", str(path.relative_to(base)))]

    return sorted(base.glob(pattern), key=version, reverse=True)


def executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


_ports_lock = threading.Lock()


def free_port(in_a_row: int = 1) -> int:
    """Return a free loopback port; with `in_a_row`, the first of that number of adjacent free ports.

    The port is below the ephemeral range (32768.. on Linux, 49152.. elsewhere): a port from that range could
    be given to an outgoing connection while the server is down for a restart, even to a reconnecting client,
    which then connects to itself. The port is reserved until this process ends.
    """
    chooser = random.SystemRandom()
    with _ports_lock:
        for _ in range(1000):
            port = chooser.randrange(15000, 32000 - in_a_row)
            if all(_can_bind(one) and _reserve(one) for one in range(port, port + in_a_row)):
                return port
    raise RuntimeError("no free loopback port between 15000 and 32000")


def _reserve(port: int) -> bool:
    """Reserve the port for this process by binding the UDP port of the same number."""
    sign = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sign.bind(("127.0.0.1", port))
    except OSError:
        sign.close()
        return False
    sign.detach()  # open until the process ends
    return True


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def tail(path: Path, lines: int = 40) -> str:
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(text.splitlines()[-lines:]) or "(empty)"


def exchange(port: int, question: bytes, size: int) -> bytes:
    """Connect to a port, send bytes, and return the response, which is empty if the connection fails."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2.0) as connection:
            connection.sendall(question)
            return connection.recv(size)
    except OSError:
        return b""


class Watchdog:
    """Kills processes if the process that created this object dies; see the module's docstring."""

    # A line on the pipe means that all servers have stopped; end of file without a line means "kill".
    _SCRIPT = 'if read -r line; then exit 0; fi; signal=$1; shift; kill -s "$signal" "$@" 2>/dev/null'

    def __init__(self, signal_name: str, *pids: int) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", self._SCRIPT, "berth-watchdog", signal_name, *map(str, pids)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # a signal to the test run's process group must not end it
        )

    def dismiss(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"stopped\n")
            self._process.stdin.close()
        self._process.wait()


@dataclass(frozen=True)
class Certificate:
    """A TLS certificate with its key: paths of PEM files."""

    certificate: Path
    key: Path


class Startable(ABC):
    """Base class of servers and clusters that a `with` statement starts and stops."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...


class Server(Startable):
    """Base class of private servers: one main process with its log and watchdog."""

    name = "server"

    def __init__(self, directory: Path, certificate: Certificate | None = None) -> None:
        self.certificate = certificate
        self.directory = Path(directory).resolve()
        self.port = free_port()
        self.log_path = self.directory / f"{self.name.lower()}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None
        self._lock = threading.RLock()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Return the server's process id; None if it was not started or was stopped."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the server unless it runs, and return when it answers."""
        with self._lock:
            if self.running:
                return
            self._clean_up()
            self.directory.mkdir(parents=True, exist_ok=True)
            try:
                self._launch()
                self._wait_until_ready()
            except BaseException:
                self._end(graceful=False)
                raise

    def stop(self) -> None:
        """Stop the server cleanly with all of its processes. This may be called again."""
        with self._lock:
            self._end(graceful=True)

    def restart(self) -> None:
        """Stop the server cleanly, and start it on the same port with the same data."""
        with self._lock:
            self.stop()
            self.start()

    def kill(self) -> None:
        """Kill the server, as in a crash; `start()` starts it again."""
        with self._lock:
            self._end(graceful=False)

    @abstractmethod
    def _launch(self) -> None:
        """Prepare the server's files, and call `_serve`."""

    @abstractmethod
    def _ready(self) -> bool: ...

    def _serve(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *pids: int,
        watchdog: str = "TERM",
    ) -> None:
        """Start the main process. The watchdog sends it, and the processes `pids`, its signal."""
        self._process = self._spawn(command, environment)
        self._watchdog = Watchdog(watchdog, self._process.pid, *pids)

    def _run(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, feed: bytes = b""
    ) -> None:
        """Run a program that reads `feed` until it exits; raise ServerFailed if its status is not 0."""
        process = self._spawn(command, environment, stdin=subprocess.PIPE)
        process.communicate(feed)
        if process.returncode:
            raise ServerFailed(
                f"{Path(command[0]).name} failed with status {process.returncode}; "
                f"the end of {self.log_path}:\n{tail(self.log_path)}"
            )

    def _spawn(
        self, command: Sequence[str], environment: Mapping[str, str] | None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own, with its output in the server's log."""
        options = {"stdin": subprocess.DEVNULL, "cwd": self.directory, **options}
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True, **options
            )

    def _signal_processes(self, graceful: bool) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM if graceful else signal.SIGKILL)

    def _end(self, graceful: bool) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            self._signal_processes(graceful)
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._clean_up()

    def _clean_up(self) -> None:
        """End the processes that a server's main process has left behind."""
        if self._process is not None:
            _end_group(self._process.pid)
            self._process = None
        if self._watchdog is not None:
            self._watchdog.dismiss()
            self._watchdog = None

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            answered = self._ready()
            code = self._process.poll()
            if code is not None:  # checked even if the port answers: it may be another server's
                problem = f"exited with status {code}"
            elif answered:
                return
            elif time.monotonic() > deadline:
                problem = f"did not answer on port {self.port} within {START_TIMEOUT:.0f} s"
            else:
                time.sleep(0.05)
                continue
            raise ServerFailed(f"{self.name} {problem}; the end of {self.log_path}:\n{tail(self.log_path)}")


def _end_group(group: int) -> None:
    """Wait for the other processes of a group whose leader has ended; kill them if they do not end."""
    deadline = time.monotonic() + 2.0
    insisted = False
    while True:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):  # macOS reports EPERM if only zombies are left
            return
        now = time.monotonic()
        if now > deadline:
            if insisted:
                return
            insisted = True
            deadline = now + 2.0
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        time.sleep(0.01)
