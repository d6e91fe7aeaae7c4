"""A minimal HTTP client for measurements: one connection, one request at a time."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlsplit

_TIMEOUT = 60.0


class Answered(asyncio.Protocol):
    """Parses responses one after the other, and sets a future when a response is complete."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.needed = -1  # length of the whole response in bytes; -1: its header is incomplete
        self.waiting: asyncio.Future[tuple[int, bytes]] | None = None
        self.closed = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # the transport of uvloop does not inherit from it
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.needed < 0:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self.buffer[:end]).lower()
            at = head.find(b"\r\ncontent-length:")
            length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            self.needed, self.head = end + 4 + length, end + 4
        if len(self.buffer) >= self.needed and self.waiting is not None:
            answer = int(self.buffer[9:12]), bytes(self.buffer[self.head : self.needed])
            del self.buffer[: self.needed]
            self.needed = -1
            waiting, self.waiting = self.waiting, None
            if not waiting.done():
                waiting.set_result(answer)

    def connection_lost(self, problem: Exception | None) -> None:
        self.closed = True
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(ConnectionResetError("the server hung up"))


class LoopbackClient:
    """An HTTP client for servers on this machine that keeps its connection open."""

    def __init__(self, base_url: str, headers: Mapping[str, str]) -> None:
        url = urlsplit(base_url)
        if url.hostname != "127.0.0.1":
            raise SystemExit(f"only servers of this machine are measured, not {url.hostname}")
        self._port = url.port or 80
        lines = [f"host: 127.0.0.1:{self._port}", *(f"{name}: {value}" for name, value in headers.items())]
        self._headers = "\r\n".join(lines).encode()
        self._connection: Answered | None = None

    async def request(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        content = b"" if body is None else json.dumps(body).encode()
        typed = b"content-type: application/json\r\n" if content else b""
        request = b"%s %s HTTP/1.1\r\n%s\r\n%scontent-length: %d\r\n\r\n%s" % (
            method.encode(), path.encode(), self._headers, typed, len(content), content
        )  # fmt: skip
        reused = self._connection is not None and not self._connection.closed
        try:
            return await self._send(request)
        except ConnectionError:
            if not reused:
                raise
            return await self._send(request)  # the server had closed the connection in the meantime

    async def must(self, method: str, path: str, body: Any = None) -> bytes:
        """Return the body of a successful response; raise for any other response."""
        status, answered = await self.request(method, path, body)
        if status >= 300:
            raise SystemExit(f"{method} {path}: {status} {answered[:500].decode(errors='replace')}")
        return answered

    async def _send(self, request: bytes) -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        connection = self._connection
        if connection is None or connection.closed:
            _, connection = await loop.create_connection(Answered, "127.0.0.1", self._port)
            self._connection = connection
        assert connection.transport is not None
        waiting = connection.waiting = loop.create_future()
        connection.transport.write(request)
        return await asyncio.wait_for(waiting, _TIMEOUT)

    def close(self) -> None:
        if self._connection is not None and self._connection.transport is not None:
            self._connection.transport.close()
