"""Runs the operator's hook that switches a host off before its instances are evacuated."""

import asyncio
import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress

from bus.maintenance import HostEvacuation

LONGEST_OUTPUT = 1000  # characters that are logged
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # never an option of the hook


async def call_hook(command: Sequence[str], limit: float, dead: HostEvacuation) -> tuple[bool, str]:
    """Run the hook with the host's name as last argument; return whether it ended with 0, and its output.

    After `limit` seconds the hook and its children are killed, and the host counts as not fenced.
    """
    if not _HOST.fullmatch(dead.host):
        return False, f"{dead.host!r} is no name that may be passed to a command"
    names = {"FENCE_HOST": dead.host, "FENCE_CELL": dead.cell, "FENCE_ROOT": dead.root}
    try:
        process = await asyncio.create_subprocess_exec(
            *command, dead.host, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, start_new_session=True, env={**os.environ, **names},
        )  # fmt: skip
    except OSError as problem:
        return False, str(problem)
    try:
        async with asyncio.timeout(limit):
            output, _ = await process.communicate()
    except TimeoutError:
        return False, f"it did not end within {limit:g} s"
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    said = output.decode(errors="replace").strip()[-LONGEST_OUTPUT:]
    return process.returncode == 0, f"exit code {process.returncode}" + (f": {said}" if said else "")
