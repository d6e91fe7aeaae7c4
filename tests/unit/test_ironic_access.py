"""Authentication to Ironic: Keystone with the real keystoneauth1, and TLS, over real sockets."""

import json
import logging
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from ironic_sync.api import Access, IronicApi, IronicRefused, IronicUnavailable
from tests.support.fake_ironic import FakeIronic, fault, node_number

UUID = node_number(1)
SECRET = "s3cret"
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg2aABDo2V9/O87ZP4
WrUUfmnyQjpH2Gq1bD8dh1j7dVqhRANCAARmOBHF7uIwdtIHQ2IHqE0BwB+x/cNZ
PRNirYn0qOT3IxruxcpBME53L+eoKjMUqCJO2Zm8uB2tlrF6amMciebX
-----END PRIVATE KEY-----
"""
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBkDCCATagAwIBAgIUPIH554UhOvHy1dRpQ5RrUKOfB0cwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJMTI3LjAuMC4xMCAXDTI2MTEyMDEyMTMzNFoYDzIxMjYxMDI3
MTIxMzM0WjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARmOBHF7uIwdtIHQ2IHqE0BwB+x/cNZPRNirYn0qOT3IxruxcpBME53
L+eoKjMUqCJO2Zm8uB2tlrF6amMciebXo2QwYjAdBgNVHQ4EFgQULlDOixnry0VT
7gP87oFAtaE5K3owHwYDVR0jBBgwFoAULlDOixnry0VT7gP87oFAtaE5K3owDwYD
VR0RBAgwBocEfwAAATAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUC
IAm9iq3Dvh6sUfNj+MDJNBuEGR210Vg8M3rMwXv8jUCnAiEAtE7jSWimKEjXBeoo
SRETD+dDTLvfe9uACz4HFgzXguM=
-----END CERTIFICATE-----
"""


class AnsweringServer:
    """Answers every request by what `answer` gives: status, headers, body."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                outer.asked.append(json.loads(body))
                self._say(*outer.answer(len(outer.asked)))

            def do_GET(self) -> None:
                self._say(*outer.answer(0))

            def _say(self, status: int, headers: dict[str, str], body: Any) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def answer(self, number: int) -> tuple[int, dict[str, str], Any]:
        raise NotImplementedError

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class FakeKeystone(AnsweringServer):
    status = 201
    lasts = timedelta(hours=1)

    def answer(self, number: int) -> tuple[int, dict[str, str], Any]:
        if self.status != 201:
            return self.status, {}, {"error": {"message": "you may not", "code": self.status}}
        endpoints = [
            {
                "interface": kind,
                "region": region,
                "region_id": region,
                "url": f"http://{kind}.{region}/v1",
                "id": "e",
            }
            for kind in ("public", "internal")
            for region in ("north", "south")
        ]
        catalog = [{"type": "baremetal", "name": "ironic", "id": "s", "endpoints": endpoints}]
        ends = (datetime.now(UTC) + self.lasts).isoformat()
        token = {"expires_at": ends, "issued_at": ends, "methods": ["password"], "catalog": catalog}
        return (
            201,
            {"X-Subject-Token": f"token-{number}"},
            {"token": token | {"user": {"id": "u", "name": "me"}}},
        )

    def access(self, **more: Any) -> Access:
        auth = more.pop("auth", None) or {
            "username": "me",
            "password": SECRET,
            "user_domain_name": "Default",
            "project_name": "service",
            "project_domain_name": "Default",
        }
        auth = {"auth_url": f"http://127.0.0.1:{self.port}/v3", **auth}
        return Access(**{"url": "http://i", "auth_type": "v3password", "auth": auth} | more)


@pytest.fixture
def keystone() -> Iterator[FakeKeystone]:
    server = FakeKeystone()
    yield server
    server.close()


def tokens(ironic: FakeIronic) -> list[str]:
    return [request.headers["X-Auth-Token"] for request in ironic.requests]


# Keystone


async def test_one_token_serves_many_requests(keystone: FakeKeystone, ironic: FakeIronic) -> None:
    async with IronicApi(keystone.access(), transport=ironic.transport) as api:
        await api.node(UUID)
        await api.node(UUID)
    assert set(tokens(ironic)) == {"token-1"}
    (asked,) = keystone.asked
    assert asked["auth"]["identity"]["password"]["user"] == {
        "name": "me",
        "password": SECRET,
        "domain": {"name": "Default"},
    }
    assert asked["auth"]["scope"] == {"project": {"name": "service", "domain": {"name": "Default"}}}


async def test_a_token_that_is_refused_is_renewed_and_the_request_made_again(
    keystone: FakeKeystone, ironic: FakeIronic
) -> None:
    shown: list[str] = []

    def refuse_the_first(request: httpx.Request) -> httpx.Response | None:
        shown.append(request.headers["X-Auth-Token"])
        return fault(401, "expired") if shown[-1] == "token-1" else None

    ironic.before = refuse_the_first
    async with IronicApi(keystone.access(), transport=ironic.transport) as api:
        assert await api.node(UUID) is not None
    assert shown == ["token-1", "token-2", "token-2"]


async def test_a_refusal_with_a_new_token_is_final(keystone: FakeKeystone, ironic: FakeIronic) -> None:
    ironic.before = lambda request: fault(401, "not you")
    async with IronicApi(keystone.access(), transport=ironic.transport) as api:
        with pytest.raises(IronicRefused, match="not you"):
            await api.set_provision_state(UUID, "active")
    assert len(ironic.requests) == 4  # the version and the node, each with two tokens


async def test_a_token_about_to_end_is_renewed_before(keystone: FakeKeystone, ironic: FakeIronic) -> None:
    keystone.lasts = timedelta(seconds=30)
    async with IronicApi(keystone.access(), transport=ironic.transport) as api:
        await api.node(UUID)
    assert tokens(ironic) == ["token-1", "token-2"]


async def test_an_application_credential_needs_no_user(keystone: FakeKeystone, ironic: FakeIronic) -> None:
    access = keystone.access(
        auth_type="v3applicationcredential",
        auth={"application_credential_id": "id", "application_credential_secret": SECRET},
    )
    async with IronicApi(access, transport=ironic.transport) as api:
        await api.node(UUID)
    identity = keystone.asked[0]["auth"]["identity"]
    assert identity["application_credential"] == {"id": "id", "secret": SECRET}
    assert "scope" not in keystone.asked[0]["auth"]


async def test_the_whole_system_may_be_asked_for(keystone: FakeKeystone, ironic: FakeIronic) -> None:
    async with IronicApi(
        keystone.access(auth={"user_id": "u", "password": SECRET, "system_scope": "all"}),
        transport=ironic.transport,
    ) as api:
        await api.node(UUID)
    assert keystone.asked[0]["auth"]["scope"] == {"system": {"all": True}}


@pytest.mark.parametrize(
    "chosen, host",
    [({"region": "south"}, "public.south"), ({"interface": "internal", "region": "north"}, "internal.north")],
)
async def test_the_endpoint_is_read_from_the_catalogue(
    keystone: FakeKeystone, ironic: FakeIronic, chosen: dict[str, str], host: str
) -> None:
    async with IronicApi(keystone.access(url="", **chosen), transport=ironic.transport) as api:
        assert await api.node(UUID) is not None
    assert ironic.requests[-1].url == f"http://{host}/v1/nodes/{UUID}"


async def test_a_catalogue_without_ironic_is_refused(keystone: FakeKeystone, ironic: FakeIronic) -> None:
    async with IronicApi(keystone.access(url="", region="west"), transport=ironic.transport) as api:
        with pytest.raises(IronicRefused, match="baremetal"):
            await api.node(UUID)


@pytest.mark.parametrize(
    "status, error", [(401, IronicRefused), (403, IronicRefused), (503, IronicUnavailable)]
)
async def test_a_refusal_by_keystone_is_not_an_outage(
    keystone: FakeKeystone, ironic: FakeIronic, status: int, error: type[Exception]
) -> None:
    keystone.status = status
    async with IronicApi(keystone.access(), transport=ironic.transport) as api:
        with pytest.raises(error, match="Keystone at"):
            await api.set_provision_state(UUID, "active")
    assert ironic.requests == []


async def test_no_secret_is_in_any_log(
    keystone: FakeKeystone, ironic: FakeIronic, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    access = keystone.access()
    async with IronicApi(access, transport=ironic.transport) as api:
        await api.node(UUID)
    assert "/v3/auth/tokens" in caplog.text
    assert SECRET not in caplog.text and "token-1" not in caplog.text and SECRET not in repr(access)


# TLS


class SecureIronic(AnsweringServer):
    def answer(self, number: int) -> tuple[int, dict[str, str], Any]:
        return 200, {"X-OpenStack-Ironic-API-Maximum-Version": "1.90"}, {"uuid": UUID}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "key.pem").write_text(KEY)
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    return {"key": str(tmp_path / "key.pem"), "cert": str(tmp_path / "cert.pem")}


@pytest.fixture
def secure(files: dict[str, str], request: pytest.FixtureRequest) -> Iterator[SecureIronic]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files["cert"], files["key"])
    if getattr(request, "param", "") == "asks who we are":
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_verify_locations(files["cert"])
    server = SecureIronic(tls)
    yield server
    server.close()


async def test_a_server_of_our_own_authority_is_trusted(secure: SecureIronic, files: dict[str, str]) -> None:
    async with IronicApi(Access(url=f"https://127.0.0.1:{secure.port}", ca_file=files["cert"])) as api:
        assert await api.node(UUID) == {"uuid": UUID}


async def test_an_untrusted_server_is_refused(secure: SecureIronic) -> None:
    async with IronicApi(Access(url=f"https://127.0.0.1:{secure.port}")) as api:
        with pytest.raises(IronicUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await api.set_provision_state(UUID, "active")


async def test_an_untrusted_server_is_accepted_if_insecure(secure: SecureIronic) -> None:
    async with IronicApi(Access(url=f"https://127.0.0.1:{secure.port}", insecure=True)) as api:
        assert await api.node(UUID) == {"uuid": UUID}


@pytest.mark.parametrize("secure", ["asks who we are"], indirect=True)
async def test_a_client_certificate_is_presented(secure: SecureIronic, files: dict[str, str]) -> None:
    url = f"https://127.0.0.1:{secure.port}"
    shown = Access(url=url, ca_file=files["cert"], cert_file=files["cert"], key_file=files["key"])
    async with IronicApi(shown) as api:
        assert await api.node(UUID) == {"uuid": UUID}
    async with IronicApi(Access(url=url, ca_file=files["cert"])) as api:
        with pytest.raises(IronicUnavailable):
            await api.set_provision_state(UUID, "active")


async def test_a_server_that_is_not_there_is_away() -> None:
    gone = SecureIronic()
    gone.close()
    async with IronicApi(Access(url=f"http://127.0.0.1:{gone.port}")) as api:
        with pytest.raises(IronicUnavailable, match=f"127.0.0.1:{gone.port}"):
            await api.set_provision_state(UUID, "active")


async def test_connections_are_reused(secure: SecureIronic, files: dict[str, str]) -> None:
    opened = []
    async with IronicApi(Access(url=f"https://127.0.0.1:{secure.port}", ca_file=files["cert"])) as api:
        for _ in range(3):
            await api.node(UUID)
            assert api._client is not None
            pool = api._client._transport._pool  # type: ignore[attr-defined]
            opened.append(len(pool.connections))
    assert opened == [1, 1, 1]
