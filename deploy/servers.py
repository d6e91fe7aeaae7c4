"""Starts private RabbitMQ and PostgreSQL servers on free loopback ports.

Used by the tests, the demo and the bench, and from a shell:

    python -m deploy.servers [--dir DIR] [--keep]

Each server lives in one directory and keeps its port and its data over ``restart()``.  Nothing of the
machine's own RabbitMQ or PostgreSQL (configuration, data, cookies, epmd) is read or touched, and
durability is the servers' default: fsync and synchronous commit on, no queue setting changed.

Only the standard library is used here.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from deploy.postgres import Postgres, PostgresBinaries, find_postgres, first_closed, postgres_account
from deploy.processes import BinariesMissing, Certificate, Server, ServerFailed, free_port, tail
from deploy.rabbitmq import RabbitMQ, RabbitMQBinaries, find_rabbitmq

__all__ = [
    "Binaries",
    "BinariesMissing",
    "Certificate",
    "Postgres",
    "PostgresBinaries",
    "RabbitMQ",
    "RabbitMQBinaries",
    "ServerFailed",
    "find_binaries",
    "find_postgres",
    "find_rabbitmq",
    "free_port",
    "main",
    "private_directory",
    "start_all",
    "stop_all",
]


@dataclass(frozen=True)
class Binaries:
    rabbitmq: RabbitMQBinaries
    postgres: PostgresBinaries


def find_binaries() -> Binaries:
    """Return the programs of RabbitMQ and PostgreSQL; raise `BinariesMissing` with all that are missing."""
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


def private_directory(prefix: str = "berth-") -> Path:
    """Return a new temporary directory that the servers can use, also when root runs PostgreSQL as another
    user.
    """
    account = postgres_account()
    for base in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        root = Path(base).resolve()
        if root.is_dir() and (account is None or first_closed(root, account) is None):
            made = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
            if account is not None:
                made.chmod(0o711)
            return made
    raise RuntimeError("no temporary directory that PostgreSQL's user can reach; set TMPDIR")


def start_all(*servers: Server) -> None:
    """Start several servers in parallel; if a start fails, stop all."""
    with ThreadPoolExecutor(len(servers)) as pool:
        futures = [pool.submit(server.start) for server in servers]
    try:
        for future in futures:
            future.result()
    except BaseException:
        stop_all(*servers)
        raise


def stop_all(*servers: Server) -> None:
    """Stop several servers in parallel."""
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
            rabbitmq = RabbitMQ(directory / "rabbitmq", management=True, samples_often=False)
            postgres = Postgres(directory / "postgres")
            print(f"# starting RabbitMQ and PostgreSQL in {directory}", flush=True)
            started = time.monotonic()
            start_all(rabbitmq, postgres)
            try:
                print(f"# ready after {time.monotonic() - started:.1f} s; Ctrl-C stops both", flush=True)
                for name, value in (rabbitmq.variables() | {"BERTH_DATABASE_URL": postgres.url}).items():
                    print(f"export {name}={value}", flush=True)
                while not finished.wait(1.0):
                    for server in (rabbitmq, postgres):
                        if not server.running:
                            raise ServerFailed(f"{server.name} ended by itself:\n{tail(server.log_path)}")
            finally:
                stop_all(rabbitmq, postgres)
    except (BinariesMissing, ServerFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
