"""Runs an operator's command for a host, with a time limit."""

import asyncio
import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

LONGEST_OUTPUT = 1000  # characters of the output that are returned
_ARGUMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")  # never an option, which begins with "-"


async def run_hook(
    command: Sequence[str], arguments: Sequence[str], limit: float, names: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """Run a command with `arguments` appended and additional environment variables (`names`); return its exit
    code and a sentence with its output. The exit code is None if the command could not run, or did not end in
    `limit` seconds and was killed with its children.
    """
    for argument in arguments:
        if not _ARGUMENT.fullmatch(argument):
            return None, f"{argument!r} is no name that may be passed to a command"
    try:
        process = await asyncio.create_subprocess_exec(
            *command, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, start_new_session=True, env={**os.environ, **(names or {})},
        )  # fmt: skip
    except OSError as problem:
        return None, str(problem)
    try:
        async with asyncio.timeout(limit):
            output, _ = await process.communicate()
    except TimeoutError:
        return None, f"it did not end within {limit:g} s"
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    said = output.decode(errors="replace").strip()[-LONGEST_OUTPUT:]
    return process.returncode, f"exit code {process.returncode}" + (f": {said}" if said else "")
