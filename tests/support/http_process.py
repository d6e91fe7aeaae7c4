"""The Placement API as a process, and functions that send requests to it as bytes."""

import asyncio
import json
import os
import sys
from asyncio import StreamReader
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import patience

ROOT = Path(__file__).parents[2]
SECONDS = 30.0
BERTH = ("-m", "berth")
PATIENT_BERTH = (  # with an hour to complete requests: a shutdown that waited for connections would not end
    "-c",
    "from bus.http import HttpLimits; HttpLimits.__init__.__kwdefaults__['drain'] = 3600.0;"
    "from berth.__main__ import main; main()",
)


@dataclass
class ApiProcess:
    process: Process
    port: int

    async def raw(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        try:
            async with patience(SECONDS):
                return await answer_from(reader)
        finally:
            writer.close()

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        answer = await self.raw(as_http(method, path, body))
        head, _, sent = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), sent


async def answer_from(reader: StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0"
    )
    return head + await reader.readexactly(int(length.partition(b":")[2]))


def as_http(method: str, path: str, body: object = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    head = [
        f"{method} {path} HTTP/1.1", "host: placement", "x-auth-token: admin",
        "openstack-api-version: placement latest", f"content-length: {len(content)}",
    ]  # fmt: skip
    if content:
        head.append("content-type: application/json")
    return "\r\n".join((*head, "", "")).encode() + content


async def _a_process(directory: Path, *arguments: str, files: int, program: Sequence[str]) -> Process:
    """Start a process of berth that may have at most `files` open files."""
    around = {key: value for key, value in os.environ.items() if not key.startswith("BERTH_")}
    return await asyncio.create_subprocess_exec(
        "sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", sys.executable, "-W",
        "error::ResourceWarning", *program, *arguments,
        cwd=directory, env={**around, "PYTHONPATH": str(ROOT)}, stdout=PIPE, stderr=PIPE,
    )  # fmt: skip


def alone(directory: Path, *more: str, http: str = "127.0.0.1:0") -> Sequence[str]:
    file = f"sqlite+aiosqlite:///{directory}/placement.db"
    return ("run", "placement", "--http", http, "--bus", "local", "--database", file, *more)


@asynccontextmanager
async def an_api_process(
    directory: Path, *arguments: str, files: int = 1024, program: Sequence[str] = BERTH
) -> AsyncIterator[ApiProcess]:
    process = await _a_process(directory, *arguments, files=files, program=program)
    try:
        assert process.stdout is not None
        async with patience(SECONDS):
            printed = (await process.stdout.readline()).decode()
            while printed.startswith("the control room is at"):
                printed = (await process.stdout.readline()).decode()
        assert printed.startswith("placement is served at http://127.0.0.1:"), printed
        yield ApiProcess(process, int(printed.rpartition(":")[2]))
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
