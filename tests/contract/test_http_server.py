"""The HTTP server of every worker ends slow and idle connections, and refuses invalid requests."""

import asyncio
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Message, Receive, Scope, Send

from bus import tls as tls_module
from bus.errors import Unavailable
from bus.http import ADDRESS_BYTES, HttpLimits, listen, serve, url_of
from bus.tls import TlsFiles
from tests.support.servers import Authority
from tests.support.waiting import patience, until

SECONDS = 20.0  # time limit of a test
SOON = 0.2  # enough for a task switch on a busy machine
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nhost"
HALF_A_BODY = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n12345"
LARGE = 32 << 20  # bytes; more than any socket holds


@dataclass
class MeasuringSite:
    """An application that answers with the length of the body, and records how its requests ended."""

    port: int = 0
    gone: list[str] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    given_up: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0
        message: Message = {"type": "nothing yet"}
        while message.get("more_body", True):
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone.append(scope["path"])
                return
            size += len(message["body"])
        self.asked.set()
        if scope["path"] == "/wait":
            await self.go_on.wait()
        sent = bytes(LARGE) if scope["path"] == "/large" else b"%d" % size
        headers = [(b"content-length", b"%d" % len(sent))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": sent, "more_body": scope["path"] == "/large"})
        if scope["path"] == "/large":  # waits until the client has read the whole body
            await send({"type": "http.response.body", "body": b""})
            self.given_up.set()

    @asynccontextmanager
    async def connected(self, reply: bytes = b"") -> AsyncIterator[tuple[StreamReader, StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(reply)
        try:
            async with patience(SECONDS):
                yield reader, writer
        finally:
            writer.close()

    async def answer(self, reply: bytes = GET) -> bytes:
        async with self.connected(reply) as (reader, _):
            return await reader.read()


@asynccontextmanager
async def served(tls: TlsFiles | None = None, **given: Any) -> AsyncIterator[MeasuringSite]:
    site, listener = MeasuringSite(), listen("127.0.0.1:0")
    site.port = listener.getsockname()[1]
    limits = HttpLimits(
        **{"idle": SECONDS, "keep_alive": SECONDS, "slow": SECONDS, "connections": 100, **given}
    )
    serving = asyncio.create_task(
        serve(Starlette(routes=[Mount("", site)]), listener, limits=limits, tls=tls)
    )
    try:
        yield site
    finally:
        site.go_on.set()
        serving.cancel()
        await asyncio.wait([serving])


async def answered(reader: StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(1)


# Slow and idle connections


@pytest.mark.parametrize(
    "reply", [HALF, b"GET", HALF_A_BODY, GET + HALF], ids=["head", "word", "body", "second"]
)
async def test_an_incomplete_request_times_out(reply: bytes) -> None:
    async with served(slow=SOON) as site:
        assert b"408 Request Timeout" in await site.answer(reply)
        assert site.gone == (["/"] if reply == HALF_A_BODY else [])


async def test_a_client_that_waits_for_a_response_is_not_closed() -> None:
    async with served(idle=SOON, keep_alive=SOON, slow=SOON) as site:
        async with site.connected(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n" + HALF) as (reader, _):
            await asyncio.wait([waiting := asyncio.create_task(reader.read(1))], timeout=SOON * 4)
            assert not waiting.done()
            site.go_on.set()
            assert await waiting
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n0")


async def test_an_unread_answer_is_abandoned() -> None:
    async with (
        served(slow=SOON) as site,
        site.connected(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n") as (_, writer),
    ):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await site.given_up.wait()


# Limits of the number of connections


async def test_the_slowest_client_is_closed_if_no_connection_is_idle() -> None:
    async with served(connections=1) as site, site.connected(GET + HALF) as (slow, _):
        assert await answered(slow)
        assert b"200 OK" in await _first_answer(site)
        assert await slow.read() == b""


async def test_a_new_connection_is_refused_if_all_are_being_served() -> None:
    async with served(connections=1) as site:
        async with site.connected(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n") as (busy, _):
            await site.asked.wait()
            assert b"503 Service Unavailable" in await site.answer(b"")
            site.go_on.set()
            assert await answered(busy)


async def _first_answer(site: MeasuringSite) -> bytes:
    async with site.connected(GET) as (reader, _):
        return await answered(reader)


# Invalid requests


@pytest.mark.parametrize(
    ("reply", "sent"),
    [
        (b"nonsense\r\n\r\n", b"400 Bad Request"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", b"400 Bad Request"),
        (b"GET / HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"GET /" + b"a" * (ADDRESS_BYTES - 1) + b" HTTP/1.1\r\nhost: x\r\n\r\n", b"200 OK"),
        (b"GET /" + b"a" * ADDRESS_BYTES + b" HTTP/1.1\r\nhost: x\r\n\r\n", b"414 "),
        (b"GET /?" + b"a" * ADDRESS_BYTES, b"414 "),
        (b"GET / HTTP/1.1\r\nhost: x\r\na: " + b"a" * (1 << 20), b"431 "),
    ],
    ids=["nonsense", "no host", "two hosts", "http 1.0", "longest", "longer", "endless", "endless header"],
)
async def test_unreadable_requests_are_refused(reply: bytes, sent: bytes) -> None:
    async with served(idle=1.0) as site:
        async with site.connected(reply) as (reader, _):
            assert sent in await reader.readuntil(b"\r\n")


# Addresses


async def test_an_address_in_use_is_reported_in_one_sentence() -> None:
    with listen("127.0.0.1:0") as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert url_of(taken) == f"http://{address}"
        with pytest.raises(Unavailable, match=f"cannot listen at {address}: "):
            listen(address)


@pytest.mark.parametrize("address", ["", "x", "127.0.0.1", ":80", "127.0.0.1:x", "127.0.0.1:65536"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        listen(address)


# TLS


async def answered_over_tls(port: int, trusted: ssl.SSLContext) -> tuple[bytes, bytes]:
    """Return the certificate of the server, and its answer."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=trusted, server_hostname="localhost"
    )
    try:
        writer.write(GET)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return shown, await answered(reader)
    finally:
        writer.close()


async def test_a_renewed_certificate_is_used_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls_module, "RENEWAL_SECONDS", 0.01)
    authority = Authority(tmp_path / "authority")
    first, second = authority.certificate("localhost"), authority.certificate("localhost")
    files = TlsFiles(str(tmp_path / "tls.pem"), str(tmp_path / "tls.key"))

    def install(certificate: Path, key: Path) -> None:
        for source, place in ((certificate, files.certificate), (key, files.key)):
            Path(place).write_bytes(source.read_bytes())

    install(first.certificate, first.key)
    trusted = ssl.create_default_context(cafile=authority.file)
    async with served(tls=files) as site:
        before, answer = await answered_over_tls(site.port, trusted)
        assert b"200 OK" in answer
        install(second.certificate, first.key)  # certificate and key do not belong together
        await until(lambda: "stays as it was" in caplog.text, "the mistake is logged")
        assert (await answered_over_tls(site.port, trusted))[0] == before
        install(second.certificate, second.key)
        while (await answered_over_tls(site.port, trusted))[0] == before:
            pass


async def test_a_client_without_tls_gets_no_answer(tmp_path: Path) -> None:
    made = Authority(tmp_path).certificate("localhost")
    async with served(tls=TlsFiles(str(made.certificate), str(made.key))) as site:
        assert await site.answer() == b""


Runner = Callable[[Coroutine[Any, Any, None]], None]
on_each_loop = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def own_certificate(directory: Path) -> tuple[TlsFiles, ssl.SSLContext]:
    authority = Authority(directory)
    made = authority.certificate("localhost")
    trusted = ssl.create_default_context(cafile=authority.file)
    return TlsFiles(str(made.certificate), str(made.key)), trusted


@on_each_loop
def test_connections_without_a_tls_handshake_keep_no_client_out(tmp_path: Path, run: Runner) -> None:
    files, trusted = own_certificate(tmp_path)

    async def scene() -> None:
        async with served(files, connections=4) as site, AsyncExitStack() as stack:
            silent = [await stack.enter_async_context(site.connected()) for _ in range(3)]
            assert await silent[0][0].read() == b"", "the oldest is closed for the newest"
            assert b"200 OK" in (await answered_over_tls(site.port, trusted))[1]

    run(scene())
