"""Runs `berth ...` in forked processes that have the libraries loaded, which saves most of a second.

One process loads the libraries and waits; every command is a child of it, with its own directory,
environment and files, and without berth's command line loaded.
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

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
    words = [str(word) for word in arguments]
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        asked = {"arguments": words, "directory": str(directory), "environment": dict(environment)}
        code = _Waiting.get().run(asked, said, complained, seconds)
        out, err = (_all_of(file) for file in (said, complained))
    return subprocess.CompletedProcess(["berth", *words], code, out, err)


def _all_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@dataclass(frozen=True)
class Child:
    """A command that was started."""

    pid: int
    _ended: IO[bytes]

    def ends_within(self, seconds: float | None) -> bool:
        return bool(select.select([self._ended], [], [], seconds)[0])

    def code(self) -> int:
        return os.waitstatus_to_exitcode(int(self._ended.readline()))


@contextmanager
def started(
    arguments: Sequence[str], directory: str, environment: Mapping[str, str], said: int, complained: int
) -> Iterator[Child]:
    asked = {"arguments": list(arguments), "directory": directory, "environment": dict(environment)}
    with _Waiting.get(whole=True).started(asked, said, complained) as child:
        yield child


class _Waiting:
    """The process that has everything loaded, as this one sees it."""

    def __init__(self, *, whole: bool = False) -> None:
        self._asking = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            around = {
                key: value for key, value in os.environ.items() if not key.startswith(("BERTH_", "COLUMNS"))
            }
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-W",
                    "error::ResourceWarning",
                    "-m",
                    __name__,
                    str(theirs.fileno()),
                    *(["whole"] if whole else []),
                ],
                env={**around, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._end)

    @staticmethod
    @cache
    def get(*, whole: bool = False) -> "_Waiting":
        return _Waiting(whole=whole)

    def run(self, asked: dict[str, Any], said: IO[bytes], complained: IO[bytes], seconds: float) -> int:
        """Its exit code; minus the number of the signal that ended it."""
        with self.started(asked, said.fileno(), complained.fileno()) as child:
            if not child.ends_within(seconds):
                os.kill(child.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(["berth", *asked["arguments"]], seconds)
            return child.code()

    @contextmanager
    def started(self, asked: dict[str, Any], said: int, complained: int) -> Iterator["Child"]:
        reading, writing = os.pipe()
        with open(reading, "rb", buffering=0) as ended:
            with self._asking:
                try:
                    words = json.dumps(asked).encode() + b"\n"
                    socket.send_fds(self._socket, [words], [said, complained, writing])
                finally:
                    os.close(writing)
                pid = int(ended.readline())
            yield Child(pid, ended)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


def _serve(way: socket.socket) -> bool:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        asked, files, _, _ = socket.recv_fds(way, 1 << 16, 3)
        if not asked:
            return False
        while not asked.endswith(b"\n"):
            asked += way.recv(1 << 16)
        said, complained, writing = files
        if _fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if child := _fork():
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
            sys.path[:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # as Python does when it starts
            sys.argv = ["berth", *command["arguments"]]
            return True
        for file in files:
            os.close(file)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's threads: they do nothing, and hold nothing
        return os.fork()


_STUB = """#!{python} -ISE
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as way:
    way.connect({address!r})
    asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(way, [len(asked).to_bytes(4, "big")], [1, 2])
    way.sendall(asked)
    answers = way.makefile()
    child = int(answers.readline())
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda number, _: os.kill(child, number))
    code = int(answers.readline())
sys.exit(code if code >= 0 else 128 - code)
"""


class ForkedCommands:
    """While it is entered, `bin/berth` serves."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self._address = str(directory / "forked")
        self._running: set[int] = set()

    def __enter__(self) -> Self:
        self.bin.mkdir()
        stub = self.bin / "berth"
        stub.write_text(_STUB.format(python=os.path.realpath(sys.executable), address=self._address))
        stub.chmod(0o755)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self._address)
        self._listening.listen(64)
        self._serving = threading.Thread(target=self._serve, name="forked commands", daemon=True)
        self._serving.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in tuple(self._running):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._serving.join()

    def _serve(self) -> None:
        while True:
            try:
                way, _ = self._listening.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._run, args=(way,), daemon=True).start()

    def _run(self, way: socket.socket) -> None:
        with way:
            head, files, _, _ = socket.recv_fds(way, 4, 2)
            try:
                asked, length = b"", int.from_bytes(head, "big")
                while len(asked) < length:
                    asked += way.recv(length - len(asked))
                arguments, directory, environment = json.loads(asked)
                with started(arguments, directory, environment, files[0], files[1]) as child:
                    for file in files:
                        os.close(file)
                    files = []
                    self._running.add(child.pid)
                    way.sendall(b"%d\n" % child.pid)
                    child.ends_within(None)
                    self._running.discard(child.pid)
                    way.sendall(b"%d\n" % child.code())
            except BrokenPipeError:
                pass
            finally:
                for file in files:
                    os.close(file)


if __name__ == "__main__":
    for library in LIBRARIES:
        import_module(library)
    if "whole" in sys.argv:
        for command in Path(ROOT, "berth", "commands").glob("*.py"):
            import_module(f"berth.commands.{command.stem}")
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as way:
        asked = _serve(way)
    if asked:
        runpy.run_module("berth", run_name="__main__", alter_sys=True)
