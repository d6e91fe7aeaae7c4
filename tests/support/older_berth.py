"""Workers of an earlier commit, run from a checkout of it."""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.berth_processes import ROOT

_SCRIPT = """
import asyncio, json, signal, sys
from berth import wiring
from berth.settings import Settings

asked = json.loads(sys.argv[1])
assert wiring.__file__.startswith(asked["tree"]), wiring.__file__
settings = Settings().having(**asked["settings"])


async def main():
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with asyncio.TaskGroup() as group:
        for worker, cell in asked["roles"]:
            role = wiring.Role(worker, cell)
            group.create_task(wiring.serve(role, settings, wiring.way_of(role, settings), stopping))
        print("up", flush=True)


asyncio.run(main())
"""


def checked_out(commit: str, directory: Path) -> Path:
    """The files of an earlier commit; skips the test where this is no clone that has it."""
    git = ["git", "-C", str(ROOT), "archive", "--format=tar", commit]
    try:
        archive = subprocess.run(git, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as problem:
        pytest.skip(f"there is no earlier version to run beside this one: {problem}")
    tree = directory / commit[:8]
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        if hasattr(tarfile, "data_filter"):  # 3.11.4 brought it, 3.12 asks for it
            files.extractall(tree, filter="data")
        else:
            files.extractall(tree)
    return tree


@contextmanager
def older_workers(
    tree: Path, roles: Sequence[tuple[str, str]], settings: Mapping[str, Any], log: Path
) -> Iterator[subprocess.Popen[str]]:
    asked = json.dumps({"tree": str(tree), "roles": roles, "settings": settings})
    around = {key: value for key, value in os.environ.items() if not key.startswith("BERTH_")}
    with log.open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, asked],
            cwd=tree,
            env={**around, "PYTHONPATH": str(tree)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n", log.read_text()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
