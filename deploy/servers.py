"""Private RabbitMQ and PostgreSQL servers on free loopback ports.

Used by the tests, the demo and the bench, and from a shell:

    python -m deploy.servers [--dir DIR] [--keep]

Each server lives in one directory and keeps its port and its data over ``restart()``.  Nothing of the
machine's own RabbitMQ or PostgreSQL (configuration, data, cookies, epmd) is read or touched, and
durability is the servers' default: fsync and synchronous commit on, no queue setting changed.

When the process that started a server dies without stopping it (a test run killed with SIGKILL), a
watchdog ends the server.  The watchdog is a ``sh`` that blocks on a pipe whose other end only the
starting process holds; the kernel closes that end however the process dies.  Preferred over
PR_SET_PDEATHSIG because that one is Linux-only and fires when the starting *thread* ends.

Only the standard library is used here.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

START_TIMEOUT = 90.0
STOP_TIMEOUT = 30.0

_HINT_RABBITMQ = "install it (`make services` does) or set BERTH_TEST_AMQP_URL to a broker to use"
_HINT_POSTGRES = "install it (`make services` does) or set BERTH_TEST_DATABASE_URL to a server to use"

# Where package managers put things that are not on every user's PATH (Homebrew on Apple and Intel).
_EXTRA_PATH = ("/opt/homebrew/bin", "/opt/homebrew/sbin", "/usr/local/bin", "/usr/local/sbin")


class BinariesMissing(RuntimeError):
    """A server is not installed on this machine; the message says what to do."""


class ServerFailed(RuntimeError):
    """A server did not start; the message holds the end of its log."""


# ---------------------------------------------------------------------------------------- binaries


@dataclass(frozen=True)
class RabbitMQBinaries:
    server: Path
    epmd: Path


@dataclass(frozen=True)
class PostgresBinaries:
    postgres: Path
    initdb: Path


@dataclass(frozen=True)
class Binaries:
    rabbitmq: RabbitMQBinaries
    postgres: PostgresBinaries


def find_binaries() -> Binaries:
    """Where both servers' programs are; `BinariesMissing` names everything that is absent."""
    rabbitmq: RabbitMQBinaries | None = None
    postgres: PostgresBinaries | None = None
    problems: list[str] = []
    try:
        rabbitmq = find_rabbitmq()
    except BinariesMissing as missing:
        problems.append(str(missing))
    try:
        postgres = find_postgres()
    except BinariesMissing as missing:
        problems.append(str(missing))
    if rabbitmq is None or postgres is None:
        raise BinariesMissing("; ".join(problems))
    return Binaries(rabbitmq, postgres)


def find_rabbitmq() -> RabbitMQBinaries:
    places = [
        Path("/usr/lib/rabbitmq/bin"),  # Debian, Ubuntu, Fedora: the real script behind the wrapper
        *_newest_first(Path("/usr/lib/rabbitmq/lib"), "rabbitmq_server-*/sbin"),
        Path("/opt/homebrew/opt/rabbitmq/sbin"),
        Path("/usr/local/opt/rabbitmq/sbin"),
        Path("/opt/rabbitmq/sbin"),
        *(Path(entry) for entry in _search_path().split(os.pathsep) if entry),
    ]
    server = next(
        (p / "rabbitmq-server" for p in places if _usable_rabbitmq_server(p / "rabbitmq-server")), None
    )
    if server is None:
        raise BinariesMissing(f"no RabbitMQ server (rabbitmq-server) on this machine: {_HINT_RABBITMQ}")
    if shutil.which("erl", path=_search_path()) is None:
        raise BinariesMissing(f"RabbitMQ is here but Erlang (erl) is not on PATH: {_HINT_RABBITMQ}")
    epmd = _find_epmd()
    if epmd is None:
        raise BinariesMissing(f"RabbitMQ is here but Erlang's epmd was not found: {_HINT_RABBITMQ}")
    return RabbitMQBinaries(server, epmd)


def find_postgres() -> PostgresBinaries:
    places = [
        *_newest_first(Path("/usr/lib/postgresql"), "*/bin"),  # Debian, Ubuntu
        *_newest_first(Path("/usr"), "pgsql-*/bin"),  # PostgreSQL's own RPM packages
        *_newest_first(Path("/opt/homebrew/opt"), "postgresql*/bin"),
        *_newest_first(Path("/usr/local/opt"), "postgresql*/bin"),
        *(Path(entry) for entry in _search_path().split(os.pathsep) if entry),
    ]
    for place in places:
        found = PostgresBinaries(place / "postgres", place / "initdb")
        if _executable(found.postgres) and _executable(found.initdb):
            return found
    raise BinariesMissing(f"no PostgreSQL server (postgres, initdb) on this machine: {_HINT_POSTGRES}")


def _search_path() -> str:
    return os.pathsep.join((os.environ.get("PATH", os.defpath), *_EXTRA_PATH))


def _newest_first(base: Path, pattern: str) -> list[Path]:
    def version(path: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", str(path.relative_to(base)))]

    return sorted(base.glob(pattern), key=version, reverse=True)


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _usable_rabbitmq_server(path: Path) -> bool:
    # Debian's /usr/sbin/rabbitmq-server only runs as root or rabbitmq and does `su`; not that one.
    return _executable(path) and "su rabbitmq" not in path.read_text(errors="replace")


def _find_epmd() -> Path | None:
    on_path = shutil.which("epmd", path=_search_path())
    if on_path is not None:
        return Path(on_path)
    # Some packages link only `erl` onto PATH: epmd is then under the directory `erl` really lives in.
    erl = shutil.which("erl", path=_search_path())
    if erl is not None:
        for root in Path(erl).resolve().parents[:2]:
            for place in (root / "epmd", *_newest_first(root, "erts-*/bin/epmd")):
                if _executable(place):
                    return place
    return None


# ------------------------------------------------------------------------------------ small helpers

_handed_out: set[int] = set()
_ports_lock = threading.Lock()


def free_port() -> int:
    """A loopback port nobody listens on.

    Taken from below the ephemeral range (32768.. on Linux, 49152.. elsewhere).  A port from inside it
    could, while the server is down for a restart, be given to an outgoing connection, even to a
    reconnecting client's own attempt, which then connects to itself.
    """
    chooser = random.SystemRandom()
    with _ports_lock:
        for _ in range(1000):
            port = chooser.randrange(15000, 32000)
            if port not in _handed_out and _can_bind(port):
                _handed_out.add(port)
                return port
    raise RuntimeError("no free loopback port between 15000 and 32000")


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def private_directory(prefix: str = "berth-") -> Path:
    """A new temporary directory the servers can use, also when root runs PostgreSQL as another user."""
    account = _postgres_account()
    for base in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        root = Path(base).resolve()
        if root.is_dir() and (account is None or _first_closed(root, account) is None):
            made = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
            if account is not None:
                made.chmod(0o711)
            return made
    raise RuntimeError("no temporary directory that PostgreSQL's user can reach; set TMPDIR")


@functools.cache
def _postgres_account() -> pwd.struct_passwd | None:
    """The account to run PostgreSQL as: it refuses root; anybody else runs it as themselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ServerFailed("PostgreSQL does not run as root and there is no user `postgres` or `nobody`")


def _first_closed(path: Path, account: pwd.struct_passwd) -> Path | None:
    """The first directory on the way to `path` that `account` cannot pass through."""
    for part in (*reversed(path.parents), path):
        status = part.stat()
        if status.st_uid == account.pw_uid:
            bit = 0o100
        elif status.st_gid == account.pw_gid:
            bit = 0o010
        else:
            bit = 0o001
        if not status.st_mode & bit:
            return part
    return None


def _tail(path: Path, lines: int = 40) -> str:
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(text.splitlines()[-lines:]) or "(empty)"


def _exchange(port: int, question: bytes, size: int) -> bytes:
    """Connect, send, and give back what is answered, b"" when there is no answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2.0) as connection:
            connection.sendall(question)
            return connection.recv(size)
    except OSError:
        return b""


class _Watchdog:
    """Ends processes when the process that made this object is gone; see the module's docstring."""

    # A line on the pipe means "all stopped, you may go"; end of file without one means "kill".
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


class _Server:
    """What both servers share: one main process, its log, its watchdog, and the waiting."""

    name = "server"

    def __init__(self, directory: Path, port: int | None = None) -> None:
        self.directory = Path(directory).resolve()
        self.port = free_port() if port is None else port
        self.log_path = self.directory / f"{self.name.lower()}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: _Watchdog | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The main process, None when the server is stopped."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the server and return when it answers; nothing to do when it runs."""
        with self._lock:
            if self.running:
                return
            self._clean_up()
            try:
                self._launch()
                self._wait_until_ready()
            except BaseException:
                self._end(graceful=False)
                raise

    def stop(self) -> None:
        """Shut down cleanly; leaves no process behind.  May be called again."""
        with self._lock:
            self._end(graceful=True)

    def restart(self) -> None:
        """Stop cleanly and start on the same port with the same data."""
        with self._lock:
            self.stop()
            self.start()

    def kill(self) -> None:
        """End the server as a crash would; `start()` brings it back."""
        with self._lock:
            self._end(graceful=False)

    def _launch(self) -> None:
        raise NotImplementedError

    def _ready(self) -> bool:
        raise NotImplementedError

    def _signal_processes(self, graceful: bool) -> None:
        raise NotImplementedError

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
        """End what belongs to a main process that is already gone, and forget about it."""
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
            if code is not None:  # checked also after an answer: another server may have the port
                problem = f"exited with status {code}"
            elif answered:
                return
            elif time.monotonic() > deadline:
                problem = f"did not answer on port {self.port} within {START_TIMEOUT:.0f} s"
            else:
                time.sleep(0.05)
                continue
            raise ServerFailed(f"{self.name} {problem}; the end of {self.log_path}:\n{_tail(self.log_path)}")


def _end_group(group: int) -> None:
    """Wait for the helpers of a dead process group leader to follow it, then insist."""
    deadline = time.monotonic() + 2.0
    insisted = False
    while True:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):  # macOS says EPERM when only zombies are left
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


# --------------------------------------------------------------------------------------- PostgreSQL


class Postgres(_Server):
    """A PostgreSQL cluster with one database, `berth`, and password authentication."""

    name = "PostgreSQL"
    user = "berth"
    database = "berth"

    def __init__(self, directory: Path, port: int | None = None) -> None:
        super().__init__(directory, port)
        self._data = self.directory / "data"
        self._sockets = self.directory / "run"
        self._password_path = self.directory / "password"
        self._password: str | None = None

    @property
    def password(self) -> str:
        if self._password is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not self._password_path.exists():
                self._password_path.touch(mode=0o600)
                self._password_path.write_text(secrets.token_hex(16))
            self._password = self._password_path.read_text()
        return self._password

    @property
    def url(self) -> str:
        return f"postgresql+asyncpg://{self.user}:{self.password}@127.0.0.1:{self.port}/{self.database}"

    def _launch(self) -> None:
        binaries = find_postgres()
        self._prepare_directory()
        if not (self._data / "PG_VERSION").exists():
            self._initialise(binaries)
        # A Unix socket's path may hold about 100 characters; without room for it TCP alone has to do.
        sockets = str(self._sockets) if len(os.fsencode(self._sockets)) < 85 else ""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": sockets,
            "max_connections": "200",
            "fsync": "on",
            "full_page_writes": "on",
            "synchronous_commit": "on",
            "logging_collector": "off",
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        with self.log_path.open("ab") as log:
            self._process = self._popen(
                [str(binaries.postgres), "-D", str(self._data), *options], log.fileno()
            )
        self._watchdog = _Watchdog("QUIT", self._process.pid)

    def _prepare_directory(self) -> None:
        account = _postgres_account()
        self.directory.mkdir(parents=True, exist_ok=True)
        for made in (self._data, self._sockets):
            made.mkdir(mode=0o700, exist_ok=True)
            if account is not None:
                os.chown(made, account.pw_uid, account.pw_gid)
        if account is not None:
            # This directory is ours to open; the ones above it belong to somebody else.
            self.directory.chmod(self.directory.stat().st_mode | 0o011)
            closed = _first_closed(self.directory, account)
            if closed is not None:
                raise ServerFailed(
                    f"started by root, PostgreSQL runs as {account.pw_name}, who cannot pass through "
                    f"{closed}; give a directory all of whose parents are open to others (mode o+x)"
                )

    def _initialise(self, binaries: PostgresBinaries) -> None:
        password_file = self._sockets / "initial-password"
        password_file.touch(mode=0o600)
        password_file.write_text(self.password)
        account = _postgres_account()
        if account is not None:
            os.chown(password_file, account.pw_uid, account.pw_gid)
        initdb = [
            str(binaries.initdb),
            f"--pgdata={self._data}",
            f"--username={self.user}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",  # of the new, empty files only; the running server syncs as always
        ]
        # In single-user mode, so that neither psql nor a driver is needed.
        create = [str(binaries.postgres), "--single", "-D", str(self._data), "postgres"]
        try:
            self._run(initdb, b"")
            self._run(create, f"CREATE DATABASE {self.database}\n".encode())
        except BaseException:
            shutil.rmtree(self._data, ignore_errors=True)
            raise
        finally:
            password_file.unlink(missing_ok=True)

    def _run(self, command: list[str], feed: bytes) -> None:
        with self.log_path.open("ab") as log:
            process = self._popen(command, log.fileno(), stdin=subprocess.PIPE)
            process.communicate(feed)
        if process.returncode != 0:
            raise ServerFailed(
                f"{Path(command[0]).name} failed with status {process.returncode}; "
                f"the end of {self.log_path}:\n{_tail(self.log_path)}"
            )

    def _popen(
        self, command: list[str], log: int, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "LC_"))}
        environment["LC_ALL"] = "C"
        account = _postgres_account()
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=log,
            stderr=log,
            cwd=self._data,
            env=environment,
            start_new_session=True,
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
            extra_groups=None if account is None else [],
        )

    def _ready(self) -> bool:
        # A start-up packet (protocol 3.0); "R" asks for the password, "E" says "starting up".
        fields = b"user\0" + self.user.encode() + b"\0database\0" + self.database.encode() + b"\0\0"
        packet = struct.pack("!ii", 8 + len(fields), 3 << 16) + fields
        return _exchange(self.port, packet, 1) == b"R"

    def _signal_processes(self, graceful: bool) -> None:
        # SIGINT is the fast shutdown.  SIGQUIT is the immediate one: no checkpoint, crash recovery at
        # the next start.  Not SIGKILL: the backends (sessions of their own) would stay for a moment
        # and hold the shared memory the next start needs.
        assert self._process is not None
        self._process.send_signal(signal.SIGINT if graceful else signal.SIGQUIT)


# ----------------------------------------------------------------------------------------- RabbitMQ


class RabbitMQ(_Server):
    """A one-node RabbitMQ broker without plugins, with the default user guest (loopback only)."""

    name = "RabbitMQ"

    def __init__(self, directory: Path, port: int | None = None) -> None:
        super().__init__(directory, port)
        self._epmd_port = free_port()
        self._distribution_port = free_port()
        self._epmd: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def _launch(self) -> None:
        binaries = find_rabbitmq()
        self.directory.mkdir(parents=True, exist_ok=True)
        environment = self._environment()
        with self.log_path.open("ab") as log:
            # In the foreground as a child of ours: the daemon the Erlang VM would start otherwise
            # outlives the broker.
            self._epmd = subprocess.Popen(
                [str(binaries.epmd), "-address", "127.0.0.1", "-port", str(self._epmd_port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=environment,
                start_new_session=True,
            )
            self._process = subprocess.Popen(
                [str(binaries.server)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=environment,
                start_new_session=True,
            )
        self._watchdog = _Watchdog("KILL", self._process.pid, self._epmd.pid)

    def _environment(self) -> dict[str, str]:
        home = self.directory
        configuration = home / "rabbitmq.conf"
        configuration.write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\nlog.console = true\nlog.console.level = info\n"
        )
        plugins = home / "enabled_plugins"
        plugins.write_text("[].\n")
        nothing = home / "rabbitmq-env.conf"
        nothing.write_text("")
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("RABBITMQ_", "ERL_")) and key != "NOTIFY_SOCKET"
        }
        environment.update(
            PATH=_search_path(),
            HOME=str(home),  # where Erlang keeps its cookie
            LC_ALL="C",
            ERL_CRASH_DUMP=str(home / "erl_crash.dump"),
            ERL_EPMD_ADDRESS="127.0.0.1",
            ERL_EPMD_PORT=str(self._epmd_port),
            # The script then execs the VM instead of keeping a shell around it, as under systemd, so
            # that our child is the broker; a plain SIGTERM is its clean shutdown.
            RUNNING_UNDER_SYSTEMD="true",
            RABBITMQ_NODENAME="rabbit@localhost",
            RABBITMQ_DIST_PORT=str(self._distribution_port),
            RABBITMQ_CONF_ENV_FILE=str(nothing),
            RABBITMQ_CONFIG_FILE=str(configuration),
            RABBITMQ_CONFIG_FILES=str(home / "conf.d"),
            RABBITMQ_ADVANCED_CONFIG_FILE=str(home / "advanced.config"),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(plugins),
            RABBITMQ_MNESIA_BASE=str(home / "mnesia"),
            RABBITMQ_LOG_BASE=str(home),
            RABBITMQ_LOGS="-",
            RABBITMQ_PID_FILE=str(home / "rabbitmq.pid"),
            # Small: two schedulers, not bound to cores that other processes use as well.
            RABBITMQ_SCHEDULER_BIND_TYPE="u",
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+S 2:2 -kernel inet_dist_use_interface {127,0,0,1}",
        )
        return environment

    def _ready(self) -> bool:
        # The protocol header; a broker that is up answers with a method frame (Connection.Start).
        return _exchange(self.port, b"AMQP\x00\x00\x09\x01", 1) == b"\x01"

    def _signal_processes(self, graceful: bool) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM if graceful else signal.SIGKILL)

    def _clean_up(self) -> None:
        if self._epmd is not None:
            self._epmd.kill()  # keeps nothing on disk
            self._epmd.wait()
            self._epmd = None
        super()._clean_up()


# ------------------------------------------------------------------------------------------ command


def start_all(*servers: _Server) -> None:
    """Start several servers at once; when one fails the others are stopped again."""
    with ThreadPoolExecutor(len(servers)) as pool:
        futures = [pool.submit(server.start) for server in servers]
    try:
        for future in futures:
            future.result()
    except BaseException:
        stop_all(*servers)
        raise


def stop_all(*servers: _Server) -> None:
    """Stop several servers at once."""
    jobs: list[Callable[[], None]] = [server.stop for server in servers]
    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = [pool.submit(job) for job in jobs]
    for future in futures:
        future.result()


@contextlib.contextmanager
def _directory(given: Path | None, keep: bool) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    made = private_directory()
    try:
        yield made
    finally:
        if keep:
            print(f"# kept: {made}", flush=True)
        else:
            shutil.rmtree(made, ignore_errors=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.servers",
        description="Start a private RabbitMQ and PostgreSQL, print their URLs, run until Ctrl-C.",
    )
    parser.add_argument(
        "--dir", type=Path, help="keep everything in this directory (default: a temporary one)"
    )
    parser.add_argument(
        "--keep", action="store_true", help="do not remove the temporary directory at the end"
    )
    options = parser.parse_args(arguments)

    finished = threading.Event()

    def finish(_signal: int, _frame: object) -> None:
        finished.set()

    signal.signal(signal.SIGINT, finish)
    signal.signal(signal.SIGTERM, finish)
    try:
        find_binaries()
        with _directory(options.dir, options.keep) as directory:
            rabbitmq = RabbitMQ(directory / "rabbitmq")
            postgres = Postgres(directory / "postgres")
            print(f"# starting RabbitMQ and PostgreSQL in {directory}", flush=True)
            started = time.monotonic()
            start_all(rabbitmq, postgres)
            try:
                print(f"# ready after {time.monotonic() - started:.1f} s; Ctrl-C stops both", flush=True)
                print(f"export BERTH_AMQP_URL={rabbitmq.url}", flush=True)
                print(f"export BERTH_DATABASE_URL={postgres.url}", flush=True)
                while not finished.wait(1.0):
                    for server in (rabbitmq, postgres):
                        if not server.running:
                            raise ServerFailed(f"{server.name} ended by itself:\n{_tail(server.log_path)}")
            finally:
                stop_all(rabbitmq, postgres)
    except (BinariesMissing, ServerFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
