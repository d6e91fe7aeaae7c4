"""Authentication to Ironic: Keystone with the real keystoneauth1, and TLS, over real sockets."""

import logging
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ironic_sync.api import IronicApi, IronicRefused, IronicUnavailable
from ironic_sync.openstack import Access
from tests.support.fake_ironic import FakeIronic, fault, node_number
from tests.support.fake_keystone import CERTIFICATE, KEY, SECRET, AnsweringServer, FakeKeystone

UUID = node_number(1)


@pytest.fixture
def keystone() -> Iterator[FakeKeystone]:
    server = FakeKeystone()
    yield server
    server.close()


def tokens(ironic: FakeIronic) -> list[str]:
    return [request.headers["X-Auth-Token"] for request in ironic.requests]


# Keystone


async def read(keystone: FakeKeystone, ironic: FakeIronic, **access: Any) -> None:
    async with IronicApi(keystone.access(**access), transport=ironic.transport) as api:
        assert await api.node(UUID) is not None


async def test_a_refusal_with_a_new_token_is_final(keystone: FakeKeystone, ironic: FakeIronic) -> None:
    ironic.before = lambda request: fault(401, "not you")
    async with IronicApi(keystone.access(), transport=ironic.transport) as api:
        with pytest.raises(IronicRefused, match="not you"):
            await api.set_provision_state(UUID, "active")
    assert len(ironic.requests) == 4  # the version and the node, each with two tokens


@pytest.mark.parametrize(
    "chosen, host",
    [({"region": "south"}, "public.south"), ({"interface": "internal", "region": "north"}, "internal.north")],
)
async def test_the_endpoint_is_read_from_the_catalogue(
    keystone: FakeKeystone, ironic: FakeIronic, chosen: dict[str, str], host: str
) -> None:
    await read(keystone, ironic, url="", **chosen)
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
