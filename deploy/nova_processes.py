"""Controls Nova's processes, which deploy/nova_launcher.py starts in the environment of `make nova-test`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deploy.placement import ROOT
from deploy.processes import BinariesMissing, ServerFailed, environment_without, executable, tail

ENVIRONMENT = ROOT / ".venv-nova"
STOP_SECONDS = 30.0


def find_nova() -> Path:
    """Return the path of the Python interpreter of the environment in which Nova is installed."""
    python = Path(os.environ.get("BERTH_TEST_NOVA") or ENVIRONMENT / "bin") / "python"
    if executable(python) and executable(python.with_name("nova-compute")):
        return python
    raise BinariesMissing(
        f"no Nova in {python.parent}: `make nova-test` installs it; "
        "or name another environment's bin directory in BERTH_TEST_NOVA"
    )


@dataclass(frozen=True, kw_only=True)
class Program:
    """The description of a process to start: its program, arguments, environment and directory."""

    name: str
    program: str  # name of a program in deploy/nova_launcher.py
    directory: Path
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.directory.parent / f"{self.name}.log"


class NovaProcesses:
    """Starts, stops and kills Nova's processes by name; a stopped or killed process can be started again."""

    def __init__(self, launcher: asyncio.subprocess.Process) -> None:
        self._launcher = launcher
        self._lock = asyncio.Lock()
        self._started: asyncio.Queue[int] = asyncio.Queue()
        self._ended: dict[int, asyncio.Future[int]] = {}
        self._pids: dict[str, int] = {}
        self.programs: dict[str, Program] = {}

    async def read_reports(self) -> None:
        assert self._launcher.stdout is not None
        while line := await self._launcher.stdout.readline():
            report = json.loads(line)
            if "status" in report:
                self._future(report["pid"]).set_result(report["status"])
            else:
                self._started.put_nowait(report["pid"])
        self._started.put_nowait(-1)

    def _future(self, pid: int) -> asyncio.Future[int]:
        return self._ended.setdefault(pid, asyncio.get_running_loop().create_future())

    async def ready(self) -> None:
        if await self._started.get() < 0:
            raise ServerFailed("the launcher of Nova ended; its standard error says why")

    async def start(self, program: Program) -> None:
        """Start a program, which is stopped with the region at the latest."""
        self.programs[program.name] = program
        program.directory.mkdir(parents=True, exist_ok=True)
        request = {
            "program": program.program, "arguments": program.arguments, "log": str(program.log),
            "environment": dict(program.environment), "directory": str(program.directory),
        }  # fmt: skip
        assert self._launcher.stdin is not None
        async with self._lock:
            self._launcher.stdin.write(json.dumps(request).encode() + b"\n")
            await self._launcher.stdin.drain()
            pid = await self._started.get()
        if pid < 0:
            raise ServerFailed(f"the launcher of Nova ended before it started {program.name}")
        self._pids[program.name] = pid
        self._future(pid)

    async def run(self, program: Program) -> str:
        """Run a program until it exits and return its output; raise `ServerFailed` if its status is not 0."""
        before = program.log.stat().st_size if program.log.exists() else 0
        await self.start(program)
        status = await self._ended[self._pids.pop(program.name)]
        if status:
            raise ServerFailed(f"{' '.join(program.arguments)}: status {status}\n{tail(program.log)}")
        return program.log.read_bytes()[before:].decode(errors="replace")

    async def restart(self, name: str) -> None:
        """Start a stopped or killed program again."""
        await self.start(self.programs[name])

    async def kill(self, name: str) -> None:
        """Kill a process with SIGKILL, as in a crash."""
        pid = self._pids.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        await self._ended[pid]

    async def stop(self, *names: str) -> None:
        """Stop processes cleanly, all at the same time."""
        pids = [self._pids.pop(name) for name in names]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in pids:
                if not self._ended[pid].done():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            if pids:
                await asyncio.wait([self._ended[pid] for pid in pids], timeout=STOP_SECONDS)

    def check(self) -> None:
        """Raise `ServerFailed` if a process has exited without being stopped."""
        for name, pid in self._pids.items():
            if self._ended[pid].done():
                log = self.programs[name].log
                raise ServerFailed(f"{name} ended with status {self._ended[pid].result()}:\n{tail(log)}")


@asynccontextmanager
async def nova_processes(log: Path) -> AsyncIterator[NovaProcesses]:
    environment = environment_without("OS_", "PYTHON", "BERTH_")
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    with log.open("ab") as errors:
        launcher = await asyncio.create_subprocess_exec(
            str(find_nova()), "-m", "deploy.nova_launcher", cwd=ROOT, env=environment, stderr=errors,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
    processes = NovaProcesses(launcher)
    reader = asyncio.get_running_loop().create_task(processes.read_reports())
    try:
        await processes.ready()
        yield processes
    finally:
        assert launcher.stdin is not None
        launcher.stdin.close()  # the launcher then ends every process
        await launcher.wait()
        await reader
