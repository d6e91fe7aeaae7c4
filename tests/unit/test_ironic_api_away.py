"""The client of Ironic's API: retries, writes, credentials, and secrets that are never logged."""

import base64
import json
import ssl
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ironic_sync.api import READ_ATTEMPTS, VERSION, IronicApi, IronicRefused, IronicUnavailable
from ironic_sync.openstack import Access
from tests.support.fake_ironic import FakeIronic, fault, node_number

UUID = node_number(1)


# Patience

AWAY: dict[str, Callable[[httpx.Request], httpx.Response]] = {
    "unreachable": lambda request: _raise(httpx.ConnectError("refused")),
    "hung up": lambda request: _raise(httpx.RemoteProtocolError("Server disconnected")),
    "slow": lambda request: _raise(httpx.ReadTimeout("")),
    "distrustful": lambda request: _raise(ssl.SSLError("alert certificate required")),
    "garbled": lambda request: _raise(httpx.DecodingError("no gzip")),
    "bad gateway": lambda request: fault(502, "upstream"),
    "overloaded": lambda request: fault(503, "busy"),
    "too late": lambda request: fault(504, "upstream"),
    "without its database": lambda request: fault(500, "DBConnectionError"),
    "asked too much": lambda request: fault(429, "slower"),
}


def _raise(problem: Exception) -> httpx.Response:
    raise problem


def failing(ironic: FakeIronic, how: Callable[[httpx.Request], httpx.Response], times: int) -> None:
    left = [times]

    def before(request: httpx.Request) -> httpx.Response | None:
        if VERSION not in request.headers or left[0] == 0:
            return None
        left[0] -= 1
        return how(request)

    ironic.before = before


@pytest.mark.parametrize("how", AWAY.values(), ids=AWAY.keys())
async def test_reads_are_retried_a_limited_number_of_times(
    ironic: FakeIronic, waits: list[float], how: Any
) -> None:
    failing(ironic, how, 99)
    async with ironic.api() as api:
        with pytest.raises(IronicUnavailable, match=f"/v1/nodes/{UUID}"):
            await api.node(UUID)
    assert len(ironic.paths()) == READ_ATTEMPTS


@pytest.mark.parametrize("how", [how for name, how in AWAY.items() if "database" not in name])
async def test_writes_are_not_retried(ironic: FakeIronic, waits: list[float], how: Any) -> None:
    failing(ironic, how, 1)
    async with ironic.api() as api:
        with pytest.raises(IronicUnavailable):
            await api.set_provision_state(UUID, "active")
    assert len(ironic.paths("PUT")) == 1


FAULTS = {
    "JSON in JSON": ({"error_message": json.dumps({"faultstring": "why"})}, "why"),
    "JSON": ({"error_message": {"faultstring": "why"}}, "why"),
    "with a description": ({"error_message": json.dumps({"title": "t", "description": "why"})}, "why"),
    "the middleware's": ({"error": {"message": "why", "code": 401}}, "why"),
    "text": ({"error_message": "why"}, "why"),
    "a list": (["why"], "['why']"),
}


@pytest.mark.parametrize("body, says", FAULTS.values(), ids=FAULTS.keys())
async def test_the_reason_is_found_however_it_is_wrapped(ironic: FakeIronic, body: Any, says: str) -> None:
    failing(ironic, lambda request: httpx.Response(400, json=body), 1)
    async with ironic.api() as api:
        with pytest.raises(IronicRefused) as refused:
            await api.node(UUID)
    assert refused.value.text == says


# Writes


async def test_a_name_with_special_characters_is_quoted(ironic: FakeIronic) -> None:
    async with ironic.api() as api:
        assert await api.node("../conductors?x=1") is None
    assert ironic.requests[-1].url.raw_path == b"/v1/nodes/..%2Fconductors%3Fx%3D1"


async def test_basic_authentication(ironic: FakeIronic) -> None:
    access = Access(url="http://i", auth_type="http_basic", auth={"username": "me", "password": "s3cret"})
    async with IronicApi(access, transport=ironic.transport) as api:
        await api.node(UUID)
    expected = "Basic " + base64.b64encode(b"me:s3cret").decode()
    assert [request.headers["Authorization"] for request in ironic.requests] == [expected, expected]


BAD = {
    "nowhere": ({}, "the url"),
    "a user in the url": ({"url": "http://me:pw@i"}, "contains a user name"),
    "basic without a user": ({"url": "http://i", "auth_type": "http_basic"}, "a username"),
    "keystone without keystone": ({"auth_type": "password"}, "auth_url"),
}


@pytest.mark.parametrize("given, says", BAD.values(), ids=BAD.keys())
def test_an_invalid_access_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        Access(**given)
    assert "pw" not in str(refused.value)
