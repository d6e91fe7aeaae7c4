"""`berth ...` in a process of its own that begins with the libraries loaded, which take most of a second.

One process loads them and waits; every command is a child of that one, with its own directory, environment
and files, and nothing of berth's command line loaded yet.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parent.parent.parent
LIBRARIES = (
    "numpy", "typer.rich_utils", "rich.markdown", "rich.table", "httpx", "jsonschema", "uvloop", "sqlalchemy",
    "aiosqlite", "alembic.command", "aio_pika", "asyncpg", "bus.delivery.runner", "bus.http", "bus.rabbit",
    "bus.sql.database", "cell_conductor", "compute_sim", "ironic_sync", "placement_worker",
    "scheduler_worker.worker",
)  # fmt: skip


def run_berth(
    arguments: Iterable[str], directory: Path, environment: Mapping[str, str], seconds: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` does it, for `python -W error::ResourceWarning -m berth ARGUMENTS`."""
    words = [str(word) for word in arguments]
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        asked = {"arguments": words, "directory": str(directory), "environment": dict(environment)}
        code = _Waiting.get().run(asked, said, complained, seconds)
        out, err = (_all_of(file) for file in (said, complained))
    return subprocess.CompletedProcess(["berth", *words], code, out, err)


def _all_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


class _Waiting:
    """The process that has everything loaded, as this one sees it."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            around = {key: value for key, value in os.environ.items() if not key.startswith("BERTH_")}
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error::ResourceWarning", "-m", __name__, str(theirs.fileno())],
                env={**around, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._end)

    @staticmethod
    @cache
    def get() -> "_Waiting":
        return _Waiting()

    def run(self, asked: dict[str, Any], said: IO[bytes], complained: IO[bytes], seconds: float) -> int:
        """Its exit code; minus the number of the signal that ended it."""
        reading, writing = os.pipe()
        with open(reading, "rb", buffering=0) as ended:
            with self._asking:
                try:
                    files = [said.fileno(), complained.fileno(), writing]
                    socket.send_fds(self._socket, [json.dumps(asked).encode() + b"\n"], files)
                finally:
                    os.close(writing)
                child = int(ended.readline())
            if not select.select([ended], [], [], seconds)[0]:
                os.kill(child, signal.SIGKILL)
                raise subprocess.TimeoutExpired(["berth", *asked["arguments"]], seconds)
            return os.waitstatus_to_exitcode(int(ended.readline()))

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


def _serve(way: socket.socket) -> bool:
    """Forks whom it is asked for; True in such a child, which is then to be that command."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks us how they ended
    while True:
        asked, files, _, _ = socket.recv_fds(way, 1 << 16, 3)
        if not asked:
            return False  # who asked has ended
        while not asked.endswith(b"\n"):
            asked += way.recv(1 << 16)
        said, complained, writing = files
        if _fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if child := _fork():  # we stay, to tell of its end
                os.write(writing, b"%d\n" % child)
                os.write(writing, b"%d\n" % os.waitpid(child, 0)[1])
                os._exit(0)
            for file, number in ((said, 1), (complained, 2)):
                os.dup2(file, number)
            for file in files:
                os.close(file)
            command = json.loads(asked)
            os.chdir(command["directory"])
            os.environ.clear()
            os.environ.update(command["environment"])
            sys.argv = ["berth", *command["arguments"]]
            return True
        for file in files:
            os.close(file)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's threads: they do nothing, and hold nothing
        return os.fork()


if __name__ == "__main__":
    for library in LIBRARIES:
        import_module(library)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as way:
        asked = _serve(way)
    if asked:
        runpy.run_module("berth", run_name="__main__", alter_sys=True)
