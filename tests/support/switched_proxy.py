"""A proxy that forwards HTTP requests to one of several servers, like the load balancer of a cloud."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

_END = b"\r\n\r\n"


class SwitchedProxy:
    """Forwards each request on a new connection, so a switch to another server affects the next request."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._may_pass = asyncio.Event()
        self._may_pass.set()
        self._passing = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._connections: set[asyncio.Task[None]] = set()
        self.url = ""

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Wait for requests in progress; later requests wait until the block ends."""
        self._may_pass.clear()
        try:
            await self._is_idle.wait()
            yield
        finally:
            self._may_pass.set()

    def switch(self, backend: str) -> None:
        self._backend = backend

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def close(self) -> None:
        """Close all connections, also those with a request in progress."""
        for task in (open_ := list(self._connections)):
            task.cancel()
        await asyncio.gather(*open_, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(_END)
            await self._may_pass.wait()
            self._passing += 1
            self._is_idle.clear()
            try:
                await self._forward(head, reader, writer)
            finally:
                self._passing -= 1
                if not self._passing:
                    self._is_idle.set()

    async def _forward(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = head.removesuffix(_END).split(b"\r\n")
        kept = [line for line in lines if not line.lower().startswith(b"connection:")]
        address = urlsplit(self._backend)
        answers, requests = await asyncio.open_connection(address.hostname, address.port)
        requests.write(b"\r\n".join([*kept, b"Connection: close"]) + _END)
        body = asyncio.create_task(_pipe(reader, requests))
        try:
            await _pipe(answers, writer)
        finally:
            body.cancel()
            requests.close()


async def _pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()


@asynccontextmanager
async def switched_proxy(backend: str) -> AsyncIterator[SwitchedProxy]:
    proxy = SwitchedProxy(backend)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
