"""Runs commands and workers in processes that are forked from one process, which has imported them before.

Importing takes most of the time of a short command, and a second of processor time of each worker.
"""

import asyncio
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from berth.__main__ import main
from berth.commands import index, terminal
from berth.services import Supervisor

_IMPORTED_LATE = (
    "berth.choice",
    "berth.conductors",
    "berth.ironic",
    "berth.placement_wiring",
    "berth.searching",
    "berth.simulated_agents",
    "bus.rabbit",
    "bus.sql.migrations",
    "compute_sim.worker",
    "scheduler_worker.worker",
    "sqlalchemy.dialects.postgresql.asyncpg",
)

for _module in {module for commands in index._MODULES.values() for module in commands.values()}:
    import_module(f"berth.commands.{_module}")
for _module in _IMPORTED_LATE:
    import_module(_module)

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["pytest", __name__])


class ForkedWorker:
    """A process with the methods of `asyncio.subprocess.Process`, which ends with this process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path | None) -> None:
        reader, self._lives = PROCESSES.Pipe(duplex=False)
        arguments = command[command.index("-m") + 1 :], dict(environment), reader, log
        self._process = PROCESSES.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        reader.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self._ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            loop.remove_reader(self._process.sentinel)
            self._ended.set()

        loop.add_reader(self._process.sentinel, end)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    async def wait(self) -> int:
        await self._ended.wait()
        self._process.join()
        self._lives.close()
        assert self.returncode is not None
        return self.returncode


class ForkingSupervisor(Supervisor):
    async def spawn(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> asyncio.subprocess.Process:
        if "-m" not in command:
            return await super().spawn(command, environment)
        return cast(asyncio.subprocess.Process, ForkedWorker(command, environment, None))


def _work(words: Sequence[str], environment: dict[str, str], lives: Connection, log: Path | None) -> None:
    """Run a module as `python -m` does, in a session of its own; its standard input ends with its parent."""
    os.setsid()
    os.dup2(lives.fileno(), 0)
    lives.close()
    if log is not None:
        for number in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [*words]
    if words[0] == "berth":
        main()
    else:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def run_forked(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run a command in this directory and environment; raise TimeoutExpired after so many seconds."""
    with TemporaryDirectory() as printed:
        paths = [Path(printed) / name for name in ("stdout", "stderr")]
        process = PROCESSES.Process(target=_printing, args=(arguments, directory, dict(environment), paths))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(
                ["berth", *arguments], seconds, *(path.read_bytes() for path in paths)
            )
        stdout, stderr = (path.read_text() for path in paths)
        return subprocess.CompletedProcess(["berth", *arguments], process.exitcode, stdout, stderr)


def _printing(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str], paths: Sequence[Path]
) -> None:
    streams = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for path in paths]
    command_in(arguments, directory, environment, [0, *streams])


def command_in(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str], streams: Sequence[int]
) -> None:
    """Run a command in this process, with these standard streams, and end the process."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    warnings.simplefilter("error", ResourceWarning)
    for console in (terminal.say, terminal.complain):  # made when the first process imported them
        console.width = int(environment.get("COLUMNS") or terminal._PIPED_WIDTH)
    sys.argv = ["berth", *arguments]
    try:
        main()
    finally:
        gc.collect()  # reports what the command did not close
