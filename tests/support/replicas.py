"""Several processes of each worker on real services, which a test stops or kills one at a time under load."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console

from berth import composition, worker_roles
from berth.commands.run import migrate_all, ready
from berth.configuration import EFFECTIVE_ENV, SUPERVISED_ENV
from berth.forked_workers import ForkedWorker
from berth.services import Supervisor
from berth.settings import Settings
from bus.clock import monotonic
from tests.support.berth_processes import PatientBus


@dataclass
class WorkerProcess:
    """One process of a worker, with its log file; `stop` and `start` may be called repeatedly."""

    role: worker_roles.Role
    number: int
    settings: Settings
    directory: Path
    seconds: list[float] = field(default_factory=list)  # from each signal to the end of the process
    process: ForkedWorker | None = None

    @property
    def log_path(self) -> Path:
        return self.directory / f"{self.role}-{self.number}.log"

    async def start(self) -> None:
        environment = os.environ | {
            EFFECTIVE_ENV: msgspec.json.encode(self.settings).decode(),
            SUPERVISED_ENV: "1",  # the process ends with the test's process
        }
        self.process = await ForkedWorker.start(Supervisor.command([self.role]), environment, self.log_path)

    async def serves(self) -> bool:
        """Return whether the last started process reads its queues, by its log (JSON, level info)."""
        assert self.process is not None
        await asyncio.sleep(0.1)
        known = f'"pid":{self.process.pid},'
        served = "serving" if self.role.worker != "scheduler" else "scheduler: serving"
        return any(known in line and served in line for line in self.log_path.read_text().splitlines())

    @property
    def redelivered(self) -> int:
        """Return how many messages were delivered to this replica again after another process crashed."""
        return self.log_path.read_text().count("was delivered before")

    async def stop(self, number: signal.Signals) -> None:
        """Send a signal, and wait until the process has ended."""
        assert self.process is not None
        if self.process.returncode is None:
            began = monotonic()
            self.process.send_signal(number)
            await self.process.wait()
            self.seconds.append(monotonic() - began)


@dataclass
class ReplicatedBerth:
    settings: Settings
    bus: PatientBus
    replicas: Sequence[WorkerProcess]


@asynccontextmanager
async def replicated(
    settings: Settings, directory: Path, *, replicas: int = 2
) -> AsyncIterator[ReplicatedBerth]:
    """Run `replicas` processes of each worker, and one of each agent, until the `with` block ends."""
    await migrate_all(settings, Console(quiet=True))
    started: list[WorkerProcess] = []
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_end, started)
        for role in worker_roles.roles_of(settings):
            if role.worker in ("ironic", "control-room"):
                continue
            for number in range(1 if role.worker == "compute" else replicas):
                replica = WorkerProcess(role, number, settings, directory)
                started.append(replica)
                await replica.start()
        bus = await stack.enter_async_context(PatientBus(composition.transport(settings, "test")))
        await ready(bus, settings)
        yield ReplicatedBerth(settings, bus, started)


async def _end(replicas: Sequence[WorkerProcess]) -> None:
    await asyncio.gather(*(replica.stop(signal.SIGKILL) for replica in replicas))
