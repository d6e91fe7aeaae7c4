"""A whole berth on real services, with every worker as a supervised process."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import Self, TypeVar

import pytest
from rich.console import Console

from berth import composition, worker_roles
from berth.commands.run import migrate_all, ready
from berth.configuration import SUPERVISED_ENV
from berth.operations.audit import Audit, audit
from berth.services import Supervisor
from berth.settings import Settings
from bus.clock import monotonic
from bus.delivery.runner import Bus, Listener
from bus.protocol import QueueSpec
from bus.topics import Address
from bus.vocabulary import Message
from tests.support.forked_commands import run_forked

M = TypeVar("M", bound=Message)

ROOT = Path(__file__).parent.parent.parent
LAYOUTS = ["separate", pytest.param("compact", marks=pytest.mark.soak)]


def run_berth(
    arguments: Iterable[str], directory: Path, environment: Mapping[str, str], seconds: float = 60.0
) -> subprocess.CompletedProcess[str]:
    return run_forked([*map(str, arguments)], directory, {"PYTHONPATH": str(ROOT), **environment}, seconds)


def _run(
    command: Sequence[str], directory: Path, environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=seconds, check=False,
    )  # fmt: skip


class PatientBus(Bus):
    """A client that loses no message while its broker is down: it listens with durable queues."""

    async def listen(self, address: Address[M], prefetch: int = 1000) -> Listener[M]:
        queue = QueueSpec(f"client.{address.key}", (address.key,))
        return Listener(address, await self.transport.consume(queue, prefetch))


@dataclass
class Running:
    """A running berth: its settings, the supervisor of its processes, and a client's bus connection."""

    settings: Settings
    supervisor: Supervisor
    bus: Bus

    async def kill(self, role: str) -> None:
        """End a worker as a crash would."""
        await self.signal(role, signal.SIGKILL)

    async def signal(self, role: str, number: signal.Signals) -> None:
        """Send a signal to the process of a worker, once it runs."""
        while (process := self.process_of(role)) is None:
            await asyncio.sleep(0.02)
        with suppress(ProcessLookupError):
            os.kill(process, number)

    def process_of(self, role: str) -> int | None:
        """Return the id of the running process of a worker, which may run other workers too."""
        running = self.supervisor.processes()
        names = (child.name for child in self.supervisor.children if role in map(str, child.roles))
        name = next(names, role)
        return running[name][0] if name in running else None

    def starts(self) -> dict[str, int]:
        return {child.name: child.starts for child in self.supervisor.children}


@asynccontextmanager
async def running(
    settings: Settings, supervising_by: Callable[[Settings], Supervisor] = Supervisor
) -> AsyncIterator[Running]:
    """Run a berth until the block ends, and wait at first until placement knows the simulated hosts."""
    if settings.database.state_dir == Settings().database.state_dir:  # agents would store their guests there
        with TemporaryDirectory(prefix="berth-tests-") as directory:
            async with running(settings.having(state_dir=directory), supervising_by) as berth:
                yield berth
        return
    if settings.process.layout == "auto":  # a test does not depend on the number of cores
        settings = settings.having(layout="separate")
    await migrate_all(settings, Console(quiet=True))
    stopping = asyncio.Event()
    supervisor = supervising_by(settings)
    async with asyncio.TaskGroup() as group:
        supervising = group.create_task(supervisor.run(stopping))
        try:
            async with PatientBus(composition.transport(settings, "test")) as bus:
                await ready(bus, settings)
                yield Running(settings, supervisor, bus)
        finally:
            stopping.set()
            await asyncio.wait([supervising])


async def settled(settings: Settings, seconds: float = 60.0, *, builds: int = 0) -> Audit:
    """Return the first clean audit with at least `builds` builds, or after `seconds` the last audit."""
    deadline = monotonic() + seconds
    while True:
        found = await audit(settings, settled=True)
        if (found.clean and sum(found.builds.values()) >= builds) or monotonic() > deadline:
            return found
        await asyncio.sleep(0.5)


class Up:
    def __init__(self, directory: Path, environment: Mapping[str, str], *flags: str) -> None:
        self.directory = directory
        self.log_path = directory / "up.log"
        strange = {key: value for key, value in os.environ.items() if not key.startswith("BERTH_")}
        ours = {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200", "BERTH_LAYOUT": "separate"}
        self.environment = {**strange, **ours, **environment}
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.pid is not None:
            self.stop()
        self._close_input()

    def _close_input(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def start(self) -> None:
        up = [sys.executable, "-m", "berth", "up", "--control-room", "127.0.0.1:0", *self._flags]
        with self.log_path.open("w") as log:
            self._close_input()
            self._process = subprocess.Popen(
                up, cwd=self.directory, env=self.environment | {SUPERVISED_ENV: "1"}, stdin=subprocess.PIPE,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.wait_until(lambda: "berth is up" in self.log or self.pid is None, "berth is up")
        if self.pid is None:
            raise AssertionError(f"berth up ended with {self._process.returncode}:\n{self.log}")

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = 20.0) -> int:
        """Send a signal to `berth up` and return its exit code; kill it and fail if it runs on too long."""
        assert self._process is not None
        self._process.send_signal(number)
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"berth up took more than {seconds} s to end:\n{self.log}") from None

    def workers(self) -> dict[str, int]:
        return {name: int(pid) for name, pid in re.findall(r"^  (\S+): process (\d+)", self.log, re.M)}

    def berth(self, *arguments: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command of berth in the same environment, as another process."""
        return run_berth(arguments, self.directory, self.environment, seconds)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return _run(command, self.directory, self.environment, 60.0)

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = 90.0) -> None:
        deadline = monotonic() + seconds
        while not condition():
            assert monotonic() < deadline, f"within {seconds} s not: {what}\n{self.log}"
            sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc").exists()  # without /proc (not Linux), a process may be a zombie
    return state not in "ZX"


_WITHOUT = ("ironic", "control-room")  # workers that boots do not need

Who = tuple[str, str]  # a worker, and its cell


@asynccontextmanager
async def in_one_process(settings: Settings, workers: Sequence[Who] | None = None) -> AsyncIterator[Bus]:
    if workers is None:
        everybody = [(role.worker, role.cell) for role in worker_roles.roles_of(settings)]
        workers = [one for one in everybody if one[0] not in _WITHOUT]
    async with joined(settings, workers), Bus(composition.transport(settings, "test")) as bus:
        await ready(bus, settings)
        yield bus


@asynccontextmanager
async def joined(settings: Settings, workers: Sequence[Who]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        roles = [worker_roles.Role(*worker) for worker in workers]
        ways = [(role, composition.way_of([role], settings)) for role in roles]
        serving = [
            group.create_task(composition.serve([role], settings, way, asyncio.Event())) for role, way in ways
        ]
        try:
            yield
        finally:
            for task in serving:
                task.cancel()
