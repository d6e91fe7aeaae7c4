"""Runs commands in processes that are forked from one process, which has imported them before.

Importing takes most of the time of a short command.
"""

import gc
import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

from berth.__main__ import main
from berth.commands import index
from berth.kit import terminal
from bus.clock import monotonic
from tests.support.waiting import Patience, waited_by

for _module in {*index._MODULES.values()}:
    import_module(f"berth.commands.{_module}")

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["pytest", __name__, "berth.worker_imports"])


def run_forked(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run a command in this directory and environment; raise TimeoutExpired after so many seconds in which
    its process could run.
    """
    with TemporaryDirectory() as printed:
        paths = [Path(printed) / name for name in ("stdout", "stderr")]
        process = PROCESSES.Process(target=_printing, args=(arguments, directory, dict(environment), paths))
        process.start()
        limited = Patience(seconds, monotonic, partial(waited_by, process.pid or 0))
        while process.exitcode is None and (left := limited.left()) > 0:
            process.join(left)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(
                ["berth", *arguments], seconds, *(path.read_bytes() for path in paths)
            )
        stdout, stderr = (path.read_text() for path in paths)
        return subprocess.CompletedProcess(["berth", *arguments], process.exitcode, stdout, stderr)


def start_forked(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str], log: Path
) -> BaseProcess:
    """Start a command in this directory and environment, which writes its output to a file."""
    log.write_bytes(b"")
    process = PROCESSES.Process(target=_printing, args=(arguments, directory, dict(environment), [log, log]))
    process.start()
    return process


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
    for console in (terminal.say, terminal.complain):  # created by the first process, with its width
        console.width = int(environment.get("COLUMNS") or terminal._PIPED_WIDTH)
    sys.argv = ["berth", *arguments]
    try:
        main()
    finally:
        gc.collect()  # reports what the command did not close
