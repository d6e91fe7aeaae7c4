"""Fixtures every test may use: private servers, a database per test, unique names on the bus.

The servers start once per process that runs tests, on first use (deploy/servers.py).  BERTH_TEST_AMQP_URL and
BERTH_TEST_DATABASE_URL name servers to use instead; the database user then needs CREATEDB.
BERTH_TEST_RABBITMQ names a directory with an unpacked RabbitMQ 4 (scripts/install-rabbitmq4), whose servers
then start.
"""

from __future__ import annotations

import asyncio
import gc
import io
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType

import pytest

from berth.features import add_filters, add_messages
from berth.settings import Settings
from bus.clock import monotonic
from deploy.mariadb import MariaDB, find_mariadb
from deploy.servers import Postgres, RabbitMQ, find_postgres, find_rabbitmq, private_directory
from tests.support.quick_databases import repeat_migrations, run_sqlite_inline
from tests.support.servers import Authority, ExternalServer, a_database, installed, url_of
from tests.support.waiting import Patience

SECONDS = float(os.environ.get("BERTH_TEST_SECONDS", "600"))  # five times the longest test on two cores


class Overdue(SystemExit):
    """The test exceeded its limit. A SystemExit leaves an event loop from whichever task was interrupted."""


@contextmanager
def limited(what: str, seconds: float = SECONDS) -> Iterator[None]:
    """Raise Overdue in the main thread after so many seconds, and again at that interval while it goes on.
    The time in which the process waited for a processor does not count.

    A hang that no Python code can interrupt ends the process later (`faulthandler_timeout` in the Makefile);
    pytest-xdist then names the test and continues in a new process.

    One signal is not enough: if it arrives just before the thread blocks in a lock, nothing wakes the thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    patience = Patience(seconds, monotonic)

    def ring(number: int, frame: FrameType | None) -> None:
        if (left := patience.left()) > 0:
            signal.setitimer(signal.ITIMER_REAL, left, seconds)
            return
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


MEMORY = Path("/dev/shm")


_ROOM = 6 << 30  # bytes; two brokers and two databases take less than half of it


def roomy(memory: Path) -> bool:
    """Is this a place in memory, and is enough of that free?"""
    if not os.access(memory, os.W_OK | os.X_OK):
        return False
    free = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    return free is not None and min(int(free[1]) << 10, shutil.disk_usage(memory).free) >= _ROOM


_BROKERS = frozenset({"rabbitmq", "restarted_rabbitmq"})
_ORDER = ("unit", "contract", "browser", "simulation", "integration")


def pytest_configure(config: pytest.Config) -> None:
    add_messages()
    add_filters()
    if "TMPDIR" not in os.environ and roomy(MEMORY):
        os.environ["TMPDIR"] = str(MEMORY)  # also for what is started from here
        tempfile.tempdir = None
    repeat_migrations()
    gc.set_threshold(20_000, 20, 50)  # collecting takes 7 % of the time otherwise


def _kind_of(item: pytest.Item) -> str:
    """Return the folder of a test below `tests`, of berth or of a feature: unit, contract, ..."""
    return item.path.as_posix().rpartition("/tests/")[2].partition("/")[0]


def _may_use_rabbitmq(item: pytest.Item) -> bool:
    """Return whether a test starts RabbitMQ by a fixture or by the parameter of `connect` for it, or is an
    integration test.
    """
    call = getattr(item, "callspec", None)
    is_for_it = call is not None and any(
        isinstance(it, str) and it == "rabbit" for it in call.params.values()
    )
    uses = is_for_it or not _BROKERS.isdisjoint(getattr(item, "fixturenames", ()))
    return uses or _kind_of(item) == "integration"


# Before pytest's own hook of this name, which deselects tests by their markers.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    several = hasattr(config, "workerinput")  # as pytest-xdist marks them
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}

    def rank(item: pytest.Item) -> tuple[int, ...]:
        directory = _kind_of(item)
        place = _ORDER.index(directory) if directory in _ORDER else len(_ORDER)
        services = item.get_closest_marker("services") is not None
        alone = services, place, directory == "integration" and item.path not in slow
        return alone if not several else (-place, item.path not in slow)

    for item in items:
        if _may_use_rabbitmq(item):
            item.add_marker(pytest.mark.rabbitmq)
    items.sort(key=rank)  # stable: the order inside a directory stays
    changing = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if changing:  # several processes run the tests, and each must call them by the same names
        raise pytest.UsageError(f"this test's name is another in every process: {changing[0]}")


def _limited(item: pytest.Item, what: str = "") -> AbstractContextManager[None]:
    lasting = any(item.get_closest_marker(name) is not None for name in ("soak", "ironic", "nova"))
    return nullcontext() if lasting else limited(f"{what}{item.nodeid}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    run_sqlite_inline(item.get_closest_marker("threads") is None)
    with _limited(item, "the setting up of "):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with _limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    with _limited(item, "the taking down of "):
        return (yield)


@pytest.fixture(scope="session")
def _server_directory() -> Iterator[Path]:
    # Not under pytest's own temporary directory: that one is closed to the user PostgreSQL runs as
    # when root runs the tests.
    directory = private_directory("berth-tests-")
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Iterator[Postgres | ExternalServer]:
    """The test run's PostgreSQL: `.url`, and when private `.restart()`, `.kill()`, `.start()`."""
    given = os.environ.get("BERTH_TEST_DATABASE_URL")
    if given:
        yield ExternalServer(given)
        return
    installed(find_postgres)
    directory: Path = request.getfixturevalue("_server_directory")
    with Postgres(directory / "postgres") as server:
        yield server


@pytest.fixture(scope="session")
def mariadb(request: pytest.FixtureRequest) -> Iterator[MariaDB]:
    """The test run's MariaDB, in which a test creates databases of its own."""
    installed(find_mariadb)
    directory: Path = request.getfixturevalue("_server_directory")
    with MariaDB(directory / "mariadb", ["berth"]) as server:
        yield server


@pytest.fixture(scope="session")
def authority(_server_directory: Path) -> Authority | None:
    return Authority(_server_directory / "authority") if shutil.which("openssl") else None


@pytest.fixture(scope="session")
def rabbitmq(request: pytest.FixtureRequest) -> Iterator[RabbitMQ | ExternalServer]:
    """The test run's RabbitMQ: `.url`, and when private `.restart()`, `.kill()`, `.start()`."""
    given = os.environ.get("BERTH_TEST_AMQP_URL")
    if given:
        yield ExternalServer(given)
        return
    installed(find_rabbitmq)
    directory: Path = request.getfixturevalue("_server_directory")
    authority: Authority | None = request.getfixturevalue("authority")
    certificate = authority.certificate("localhost") if authority is not None else None
    with RabbitMQ(directory / "rabbitmq", certificate=certificate) as server:  # by TLS, too
        yield server


@pytest.fixture(scope="session")
def restarted_rabbitmq(request: pytest.FixtureRequest) -> Iterator[RabbitMQ]:
    """Another, for tests that stop or kill it: it has little of other tests to recover. Start it first."""
    installed(find_rabbitmq)
    directory: Path = request.getfixturevalue("_server_directory")
    with RabbitMQ(directory / "restarted") as server:
        yield server


@pytest.fixture
async def database_url(postgres: Postgres | ExternalServer) -> AsyncIterator[str]:
    """The SQLAlchemy URL of a new, empty PostgreSQL database of this test's own."""
    async with a_database(postgres) as url:
        yield url


@pytest.fixture
def amqp_url(rabbitmq: RabbitMQ | ExternalServer) -> str:
    """The URL of the shared broker; keep tests apart with `bus_name` in every queue and exchange."""
    return url_of(rabbitmq)


@pytest.fixture
def bus_name() -> str:
    """A short string no other test has, for names on the shared broker."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
def servers(amqp_url: str, database_url: str, bus_name: str) -> Settings:
    """Settings of one cell that uses the shared broker and this test's own database and exchange."""
    return Settings().having(amqp_url=amqp_url, database_url=database_url, exchange=bus_name, cells=("c1",))


@pytest.fixture
def no_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test in an empty directory, in which no settings file is found."""
    monkeypatch.chdir(tmp_path)
