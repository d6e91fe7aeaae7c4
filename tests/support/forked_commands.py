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
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from berth.__main__ import main
from berth.commands import index, terminal

for _module in {module for commands in index._MODULES.values() for module in commands.values()}:
    import_module(f"berth.commands.{_module}")

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["pytest", __name__, "berth.worker_imports"])


def run_forked(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run a command in this directory and environment; raise TimeoutExpired after so many seconds."""
    with TemporaryDirectory() as printed:
        paths = [Path(printed) / name for name in ("stdout", "stderr")]
        process = _PROCESSES.Process(target=_command, args=(arguments, directory, dict(environment), paths))
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


def _command(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str], paths: Sequence[Path]
) -> None:
    for number, path in enumerate(paths, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
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
