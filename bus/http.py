"""The HTTP server that all workers use, at least for metrics and health checks. Adds limits that uvicorn
lacks: for TLS handshakes, idle connections, slow requests, unread responses, and the number of connections.
"""

import asyncio
import contextlib
import logging
import resource
import socket
import sys
from asyncio import TimerHandle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from bus.errors import Unavailable
from bus.tls import TlsFiles

log = logging.getLogger(__name__)

BACKLOG = 2048
_ACCEPTING_PAUSE = 0.5  # seconds until the next attempt if a connection cannot be accepted
HEAD_BYTES = 128 << 10  # limit of a request's headers
ADDRESS_BYTES = 65_535  # limit of a URL with its query, given by the parser
CLIENT_ADDRESS: ContextVar[str] = ContextVar("CLIENT_ADDRESS", default="")  # from which a request came
LEAST_RATE = 1000  # bytes a second; a long request that is sent slower is refused

# Makes headers and body of a refusal from its status, reason and the client's Accept header.
FormatRefusal = Callable[[int, str, str], tuple[Mapping[str, str], bytes]]


@dataclass(frozen=True, kw_only=True)
class HttpLimits:
    """Timeouts of HTTP connections, and the maximum number of connections."""

    idle: float = 75.0  # seconds for which a new connection may be without a request
    keep_alive: float = 75.0  # the same after a response; 0: the connection is closed with its response
    slow: float = 30.0  # seconds for a client to send a request (plus its size / LEAST_RATE), or to read data
    drain: float = 1.0  # seconds to complete the requests in progress when the server stops
    handshake: float = 10.0  # seconds for a TLS handshake
    connections: int = 1000  # maximum number; at most half of the process's limit of open files


def origin_of(scope: Scope) -> str:
    """Return the IP address of the client of a request, or an empty text if it is unknown."""
    client = scope.get("client")
    return str(client[0]) if client else ""


class TooManyRequests(Exception):
    """Raised if a caller has too many requests in progress that last long."""


class LongRequests:
    """Counts the requests in progress that last long (streams, waits) of each caller, which may have `most`
    of them, so that no caller takes the connections of all others.
    """

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self._counts: Counter[str] = Counter()

    def check(self, caller: str) -> None:
        """Raise TooManyRequests if this caller has as many as it may have."""
        if self._counts[caller] >= self._most:
            raise TooManyRequests(f"a user may have {self._most} {self._what} at the same time")

    @contextlib.contextmanager
    def counted(self, caller: str) -> Iterator[None]:
        """Count a request of the caller as open while the `with` block runs."""
        self._counts[caller] += 1
        try:
            yield
        finally:
            self._counts[caller] -= 1
            if not self._counts[caller]:
                del self._counts[caller]


def listen(address: str) -> socket.socket:
    """Return a socket that listens at HOST:PORT (port 0: any free port) and queues connections."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is not an address: HOST:PORT, such as 127.0.0.1:8778")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, _, _, _, place = found[0]
        return socket.create_server(place[:2], family=family, backlog=BACKLOG)
    except OSError as problem:
        raise Unavailable(f"cannot listen at {address}: {problem.strerror or problem}") from None


def url_of(listener: socket.socket, tls: TlsFiles | None = None) -> str:
    """Return the URL under which a listening socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"


def announce(server: str, listener: socket.socket, path: str = "", tls: TlsFiles | None = None) -> None:
    """Print the address at which a server listens, as `placement is served at http://127.0.0.1:8778`."""
    sys.stdout.write(f"{server} at {url_of(listener, tls)}{path}\n")
    sys.stdout.flush()


def plainly(status: int, why: str, accept: str) -> tuple[Mapping[str, str], bytes]:
    """Return headers and body of a plain-text response that refuses an HTTP request for the reason `why`,
    whatever content types the client accepts (`accept`).
    """
    return {"content-type": "text/plain; charset=utf-8"}, f"{why}\n".encode()


async def serve(
    app: Starlette,
    listener: socket.socket,
    *,
    limits: HttpLimits | None = None,
    format_refusal: FormatRefusal = plainly,
    closing: Callable[[], None] | None = None,
    tls: TlsFiles | None = None,
) -> None:
    """Serve HTTP, or HTTPS with `tls`, until cancelled; then complete the requests in progress.

    `format_refusal` returns headers and body of a response to a request that the server refuses before `app`
    gets it. `closing` is called before the requests in progress are completed; it ends long-lived responses.
    """
    limits = _within_open_files(limits or HttpLimits())
    config = _Config(
        app,
        http=_Connection,
        ws="none",
        loop="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=limits.keep_alive,  # type: ignore[arg-type]  # fractions of a second are fine
        timeout_graceful_shutdown=max(1, round(limits.drain)),
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )
    config.limits = limits
    config.format_refusal = format_refusal
    config.load()
    server = _Server(config)
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []
        if tls and config.ssl:
            tasks.append(group.create_task(tls.renew(config.ssl)))
            tasks.append(group.create_task(_TlsPort(server, config, listener).run()))
        try:
            await server.serve(sockets=[] if tls else [listener])
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            if closing is not None:
                closing()
            if server.started:
                await server.shutdown(sockets=[listener])
            listener.close()


def _within_open_files(limits: HttpLimits) -> HttpLimits:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits
    return replace(limits, connections=max(1, min(limits.connections, files // 2)))


class _Config(uvicorn.Config):
    limits: HttpLimits
    format_refusal: FormatRefusal


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # instead of uvicorn's signal handlers: the process has its own

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


class _TlsPort:
    """Accepts TLS connections for a server, and limits the number and the time of incomplete handshakes.

    The limits of `_Connection` apply only after the handshake: before it, neither asyncio nor uvloop limits
    the connections.
    """

    def __init__(self, server: _Server, config: _Config, listener: socket.socket) -> None:
        self._server, self._config, self._listener = server, config, listener
        self._shaking: dict[asyncio.Task[None], None] = {}  # the oldest first

    async def run(self) -> None:
        await self._server.ready.wait()
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        most = max(1, self._config.limits.connections // 2)
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(self._listener)
                except OSError as problem:
                    log.warning("a connection cannot be accepted: %s", problem.strerror or problem)
                    await asyncio.sleep(_ACCEPTING_PAUSE)
                    continue
                if len(self._shaking) >= most:
                    oldest = next(iter(self._shaking))
                    del self._shaking[oldest]
                    oldest.cancel()
                task = group.create_task(self._shake_hands(accepted))
                self._shaking[task] = None
                task.add_done_callback(lambda done: self._shaking.pop(done, None))

    async def _shake_hands(self, accepted: socket.socket) -> None:
        loop, config, server = asyncio.get_running_loop(), self._config, self._server
        try:
            async with asyncio.timeout(config.limits.handshake):
                await loop.connect_accepted_socket(
                    lambda: _Connection(
                        config=config, server_state=server.server_state, app_state=server.lifespan.state
                    ),
                    accepted,
                    ssl=config.ssl,
                )
        except OSError:  # a TimeoutError or SSLError too: the client gets no answer
            pass


class _TooLong(Exception):
    pass


class _BadHost(Exception):
    pass


class _Connection(HttpToolsProtocol):
    """An HTTP connection with time limits for being idle, sending a request and reading a response."""

    config: _Config

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head = 0  # bytes of the request's headers received so far; -1 if they are complete
        self._is_complete = True  # whether the last request is complete
        self._received = 0  # bytes of the request received so far
        self._since = 0.0  # when the request began
        self._sender_deadline: TimerHandle | None = None  # deadline of an incomplete request
        self._unread: TimerHandle | None = None  # deadline of an unread response
        self._answering: RequestResponseCycle | None = None  # pipelined requests wait for this response

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_request()
        if len(self.connections) > self.config.limits.connections and not self._close_idle_connection():
            self._refuse(503, "There are too many connections; try again later.")

    def _close_idle_connection(self) -> bool:
        """Close another connection to stay below the limit: the longest idle one, or else the one with the
        oldest incomplete request. Return False if all other connections have complete requests.
        """
        others = [
            connection
            for connection in self.connections
            if isinstance(connection, _Connection)
            and connection is not self
            and not connection.transport.is_closing()
        ]
        for timer in ("timeout_keep_alive_task", "_sender_deadline"):
            waited_for = [connection for connection in others if getattr(connection, timer) is not None]
            if waited_for:
                min(waited_for, key=lambda connection: getattr(connection, timer).when()).transport.close()
                return True
        return False

    def _wait_for_request(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            self.config.limits.idle, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        self._close()

    # Time to send a request

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_complete:
            self._stop_waiting()
            if self.timeout_keep_alive_task is None and (self.cycle is None or self.cycle.response_complete):
                self._wait_for_request()  # only line ends were received, which may precede a request
            return
        if self._sender_deadline is None:
            self._received, self._since = 0, self.loop.time()
            self._sender_deadline = self.loop.call_later(self.config.limits.slow, self._check_sender)
        self._received += len(data)
        if self._head >= 0:
            self._head += len(data)
            if self._head > HEAD_BYTES:
                self._refuse(431, f"The headers of a request may have {HEAD_BYTES} bytes.")

    def _check_sender(self) -> None:
        """Refuse an HTTP request that is not complete at its deadline, which each received byte extends."""
        now = self.loop.time()
        if self.flow.read_paused or self._is_responding():
            self._since, self._received = now, 0
        left = self._since + self.config.limits.slow + self._received / LEAST_RATE - now
        if left > 0:
            self._sender_deadline = self.loop.call_later(left, self._check_sender)
        else:
            self._refuse(408, "The request was not complete in time.")

    def _is_responding(self) -> bool:
        answering = self._answering
        return (
            answering is not None
            and not answering.response_complete
            and (answering.response_started or not answering.more_body)
        )

    def _stop_waiting(self) -> None:
        if self._sender_deadline is not None:
            self._sender_deadline.cancel()
            self._sender_deadline = None

    def on_message_begin(self) -> None:
        self._head, self._is_complete = 0, False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > ADDRESS_BYTES:
            raise _TooLong

    def on_headers_complete(self) -> None:
        self._head = -1
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() != "1.0"):
            raise _BadHost
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_complete = True
        super().on_message_complete()

    # Time to read a response

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None and not self.transport.is_closing():
            self._unread.cancel()
            self._unread = None

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()
        elif not self._is_complete:  # the next request has started: the connection is not idle
            self._unset_keepalive_if_required()

    def _watch_reader(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        if waiting and self._unread is None:
            self._unread = self.loop.call_later(self.config.limits.slow, self._check_reader, waiting)

    def _check_reader(self, waiting: int) -> None:
        self._unread = None
        if self.transport.get_write_buffer_size() < waiting:
            self._watch_reader()
        else:
            self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        CLIENT_ADDRESS.set(self.client[0] if self.client else "")  # in the context of the task that begins
        cycle.keep_alive = cycle.keep_alive and self.config.limits.keep_alive > 0
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._stop_waiting()
        if self._unread is not None:
            self._unread.cancel()
        self._forget_answers()

    def _forget_answers(self) -> None:
        """Mark all unfinished responses as disconnected: uvicorn marks only the connection's last one."""
        for cycle in (self._answering, self.cycle, *(queued for queued, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()

    def _close(self) -> None:
        """Close the connection when the client has read the response, or read nothing for `slow` seconds."""
        self.transport.close()
        self._watch_reader()

    def send_400_response(self, msg: str) -> None:
        problem = sys.exc_info()[1]
        if problem is not None and isinstance(problem.__context__, _TooLong):
            self._refuse(414, f"A URL with its query may have {ADDRESS_BYTES} bytes.")
        elif problem is not None and isinstance(problem.__context__, _BadHost):
            self._refuse(400, "A request of HTTP/1.1 has one header Host.")
        else:
            self._refuse(400, str(problem or msg))

    def _refuse(self, status: int, why: str) -> None:
        if self.transport.is_closing():
            return
        self._stop_waiting()
        self._forget_answers()
        accept = dict(self.headers or ()).get(b"accept", b"").decode("latin-1")
        headers, body = self.config.format_refusal(status, why, accept)
        headers = {**headers, "content-length": str(len(body)), "connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode() + body)
        self._close()


def metrics_app() -> Starlette:
    """Return the web app that serves metrics for Prometheus at /metrics and /, and "alive" at /healthz."""
    return Starlette(routes=[Route("/metrics", _metrics), Route("/", _metrics), Route("/healthz", _alive)])


async def _metrics(request: Request) -> Response:
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


async def _alive(request: Request) -> Response:
    return JSONResponse({"status": "alive"})
