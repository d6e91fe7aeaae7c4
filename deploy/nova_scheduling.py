"""Runs berth as the scheduler of a Nova region, each worker as a process, instead of nova-scheduler."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from deploy.nova_configuration import API_DATABASE
from deploy.nova_placements import Foundation, register, serving
from deploy.nova_region import NovaRegion
from deploy.placement import ROOT, ApiAccess, BerthPlacement
from deploy.processes import ServerFailed, environment_without, tail
from deploy.rabbitmq import make_virtual_hosts

READY_SECONDS = 120.0
READY = {"nova": "serving calls of topic", "nova-shadow": "subscribed to Nova's notifications"}  # in the log
STOP_SECONDS = 30.0


def bus_url(foundation: Foundation) -> str:
    """Return the URL of berth's virtual host on the region's RabbitMQ."""
    return f"{foundation.rabbitmq.url.rstrip('/')}/berth"


class BerthOnRabbitMQ:
    """Runs berth as the Placement of a region, on a virtual host that berth's other workers use, too."""

    server: BerthPlacement

    @asynccontextmanager
    async def placement(self, foundation: Foundation) -> AsyncIterator[str]:
        """Run `berth run placement` until the block ends, register it in the catalogue, and yield its URL."""
        await asyncio.to_thread(make_virtual_hosts, foundation.rabbitmq, "berth")
        access = ApiAccess(keystone=foundation.placement_user)
        directory, url = foundation.directory / "berth", foundation.database_url
        self.server = BerthPlacement(directory, url, access, bus_url(foundation))
        async with serving(self.server):
            await register(foundation.keystone.admin, self.server.base_url)
            yield self.server.base_url


class BerthWorker:
    """Runs a worker of berth as a process, which can be killed and started again."""

    def __init__(self, name: str, directory: Path, settings: Mapping[str, str]) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._start = 0  # size of the log when the process was started

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not started"
        return self._process.pid

    async def start(self) -> None:
        environment = environment_without("BERTH_", "OS_")
        environment |= {f"BERTH_{name.upper()}": value for name, value in self._settings.items()}
        with self.log.open("ab") as log:
            self._start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "berth", "run", self.name, stdin=asyncio.subprocess.DEVNULL,
                stdout=log, stderr=log, cwd=self.log.parent,
                env={**environment, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.send_signal(number)
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()

    async def wait_until_ready(self) -> None:
        """Wait until the process logs that it is ready; a worker without an entry in `READY` logs nothing."""
        async with asyncio.timeout(READY_SECONDS):
            while READY.get(self.name, "").encode() not in self.log.read_bytes()[self._start :]:
                self.check()
                await asyncio.sleep(0.1)

    def check(self) -> None:
        """Raise ServerFailed if the process has ended by itself."""
        if self._process is not None and self._process.returncode is not None:
            raise ServerFailed(f"{self.name} ended with {self._process.returncode}:\n{tail(self.log)}")


@asynccontextmanager
async def berth_scheduling(
    region: NovaRegion,
    settings: Mapping[str, str] | None = None,
    workers: Sequence[str] = ("scheduler", "nova"),
) -> AsyncIterator[dict[str, BerthWorker]]:
    """Run workers of berth for a region, by default the scheduler and the bridge.

    berth's Placement must be running on the same virtual host. Yields the workers by name as soon as the
    bridge receives Nova's RPC calls, and shadow mode receives Nova's notifications.
    """
    directory = region.foundation.directory / "berth"
    shared = {
        "amqp_url": bus_url(region.foundation),
        "database_url": region.foundation.database_url.replace("+asyncpg", ""),
        "nova_amqp_url": region.bus_urls[""],
        "nova_notification_amqp_url": region.bus_urls[""],
        "nova_database_url": region.database_urls[API_DATABASE],
        **(settings or {}),
    }
    running = {name: BerthWorker(name, directory, shared) for name in workers}
    try:
        for worker in running.values():
            await worker.start()
        for worker in running.values():
            await worker.wait_until_ready()
        yield running
    finally:
        for worker in reversed(running.values()):
            await worker.stop()
