"""Serves the HTTP door with uvicorn, in the event loop of the worker it belongs to."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bus.clock import Clock
from bus.errors import Unavailable
from placement_worker.http.errors import Problem, bad_request

BACKLOG = 2048
HEAD_BYTES = 128 << 10  # of a request before it is refused


def listen(address: str) -> socket.socket:
    """A socket at HOST:PORT, or a sentence about why not."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, _, _, _, place = found[0]
        return socket.create_server(place[:2], family=family, backlog=BACKLOG)
    except OSError as problem:
        raise Unavailable(f"cannot listen at {address}: {problem.strerror or problem}") from None


async def serve(app: Starlette, listener: socket.socket, drain: float) -> None:
    """Answer until cancelled; then let what is being answered be finished, for so many seconds at most."""
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        loop="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(drain)),
    )
    server = _Server(config)
    try:
        await server.serve(sockets=[listener])
    finally:
        app.state.closing.set()
        if server.started:
            await server.shutdown(sockets=[listener])


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are for the whole process to hear


class _Protocol(HttpToolsProtocol):
    """What is no HTTP, or too much of it, is refused in the API's form."""

    _head = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head >= 0:
            self._head += len(data)
            if self._head > HEAD_BYTES and not self.transport.is_closing():
                self._refuse(Problem(431, f"The head of a request may have {HEAD_BYTES} bytes."))

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = -1
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        why = str(sys.exc_info()[1] or msg)
        if "Content-Length" in why:
            why = "content-length header must be an integer"
        self._refuse(bad_request(why))

    def _refuse(self, problem: Problem) -> None:
        accept = dict(self.headers or ()).get(b"accept", b"").decode("latin-1")
        id_ = f"req-{Clock().uuid()}"
        kind, body = problem.rendered(accept, id_, -1)
        head = (
            f"HTTP/1.1 {problem.status} {problem.title}\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(body)}\r\nx-openstack-request-id: {id_}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
