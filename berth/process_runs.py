"""Detects that a process starts again although it was never stopped: it crashed, or was killed.

Each process has a locked file in the directory `runs` of the state directory, and deletes it when it is
stopped. The operating system releases the lock when the process ends, so an unlocked file was left by a
process that ended in another way.
"""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)


@contextmanager
def recorded_run(name: str, directory: Path) -> Iterator[bool]:
    """Record that a process with this name runs until the `with` block ends, and yield whether an earlier one
    ended without being stopped. If the block raises, this process counts as not stopped. If the directory
    cannot be written, nothing is recorded.
    """
    folder = directory / "runs"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        was_left = _delete_left(folder, name)
        path, file = _locked(folder, name)
    except OSError as problem:
        log.info("%s cannot be written, so a restart of this process is not noticed: %s", folder, problem)
        yield False
        return
    try:
        yield was_left
        path.unlink(missing_ok=True)
    finally:
        os.close(file)


def _locked(folder: Path, name: str) -> tuple[Path, int]:
    """Create and lock the file of this process. The file gets its name when it is locked."""
    path = folder / f"{name}.{os.getpid()}"
    unnamed = folder / f".{os.getpid()}"
    file = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        unnamed.rename(path)
    except BaseException:
        os.close(file)
        raise
    return path, file


def _delete_left(folder: Path, name: str) -> bool:
    """Delete the files of ended processes with this name; return whether there were any."""
    found = False
    for path in folder.glob(f"{name}.*"):
        if not path.name.removeprefix(f"{name}.").isdigit():
            continue
        with suppress(FileNotFoundError):
            file = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                found = True
            except BlockingIOError:  # the process runs
                pass
            finally:
                os.close(file)
    return found
