"""Addresses at which no broker answers: one accepts connections and stays silent, one drops packets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager


@asynccontextmanager
async def silent_address(ip: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """Yield the port of a server that accepts connections, and neither reads nor answers."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(accept, ip, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()


@asynccontextmanager
async def black_hole() -> AsyncIterator[int]:
    """Yield a port whose packets are dropped: its queue of new connections is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        port = listening.getsockname()[1]
        async with AsyncExitStack() as fillers:
            for _ in range(4):
                filler = fillers.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            await asyncio.sleep(0.1)
            yield port
