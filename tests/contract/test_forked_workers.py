"""Workers in processes that are forked from one process: lists of processes, failures, and their end."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from berth import worker_roles
from berth.forked_workers import ForkedWorker
from berth.services import Supervisor
from berth.settings import Settings
from tests.support.berth_processes import alive
from tests.support.snippets import ROOT
from tests.support.waiting import until

IDLE = "tests.support.idle_worker"
SETTINGS = Settings().having(
    cells=("c1",), layout="compact", amqp_url="amqp://", database_url="postgresql://"
)


class IdleSupervisor(Supervisor):
    @staticmethod
    def command(together: Sequence[worker_roles.Role]) -> Sequence[str]:
        return [IDLE, *map(str, together)]


@asynccontextmanager
async def supervised() -> AsyncIterator[IdleSupervisor]:
    stopping, supervisor = asyncio.Event(), IdleSupervisor(SETTINGS, lambda _: None)
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run(stopping))
        await until(lambda: supervisor.children and len(supervisor.processes()) == len(supervisor.children))
        yield supervisor
        stopping.set()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists arguments in /proc")
async def test_lists_of_processes_show_the_command_of_a_worker() -> None:
    async with supervised() as supervisor:
        commands = [[IDLE, *map(str, child.roles)] for child in supervisor.children]
        await until(lambda: shown(supervisor) == commands, picture=lambda: shown(supervisor))


def shown(supervisor: Supervisor) -> list[list[str]]:
    pids = [child.process.pid for child in supervisor.children if child.process is not None]
    return [Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0") for pid in pids]


async def test_workers_start_again_if_the_process_that_forks_them_ends() -> None:
    async with supervised() as supervisor:
        before = {pid for pid, _ in supervisor.processes().values()}
        stat = Path(f"/proc/{next(iter(before))}/stat").read_text().rpartition(")")[2].split()
        os.kill(int(stat[1]), signal.SIGKILL)  # the process that forks workers
        await until(lambda: len(now(supervisor) - before) == len(before))
        await until(lambda: not any(map(alive, before)))


def now(supervisor: Supervisor) -> set[int]:
    return {pid for pid, _ in supervisor.processes().values()}


async def test_a_worker_prints_only_its_own_output(tmp_path: Path) -> None:
    worker = await ForkedWorker.start(["berth", "--version"], os.environ, tmp_path / "log")
    assert await worker.wait() == 0
    assert (tmp_path / "log").read_text().startswith("berth ")


async def test_a_worker_of_the_installed_command_prints_no_warning_of_python(tmp_path: Path) -> None:
    command = tmp_path / "berth"  # multiprocessing runs this script again in each process that it forks
    command.write_text(
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from berth.__main__ import main\n"
        "from berth.forked_workers import ForkedWorker\n\n"
        "async def start():\n"
        "    return await (await ForkedWorker.start(['berth', '--version'], os.environ)).wait()\n\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(asyncio.run(start()))\n"
    )
    ran = await asyncio.create_subprocess_exec(
        sys.executable, str(command), cwd=ROOT, stdout=PIPE, stderr=PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    reply, complained = await ran.communicate()
    assert (ran.returncode, complained) == (0, b"")
    assert reply.startswith(b"berth ")


async def test_a_worker_ends_with_its_exit_code_or_signal() -> None:
    failing = await ForkedWorker.start([IDLE, "--fail"], os.environ)
    assert await failing.wait() == 3 == failing.returncode
    killed = await ForkedWorker.start([IDLE], os.environ)
    killed.send_signal(signal.SIGKILL)
    assert await killed.wait() == -signal.SIGKILL
