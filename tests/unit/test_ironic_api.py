"""Ironic's API from our side: which version, who we are, what is tried again, and what is never told."""

import asyncio
import base64
import json
import logging
import ssl
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ironic_sync.api import (
    NEWEST,
    READ_ATTEMPTS,
    VERSION,
    Access,
    IronicApi,
    IronicRefused,
    IronicUnavailable,
)
from tests.fake_ironic import FakeIronic, fault, node_number

UUID = node_number(1)


@pytest.fixture
def ironic() -> FakeIronic:
    fake = FakeIronic()
    fake.have(1)
    return fake


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited, without waiting."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return waited


# Which version


@pytest.mark.parametrize("theirs, asked", [(115, "1.115"), (82, "1.82"), (999, f"1.{NEWEST[1]}")])
async def test_the_newest_version_both_know_is_spoken(theirs: int, asked: str) -> None:
    ironic = FakeIronic(minor=theirs)
    ironic.have(1)
    ironic.before = lambda request: (
        httpx.Response(200, json={"uuid": UUID}) if request.url.path.startswith("/v1/nodes") else None
    )
    async with ironic.api() as api:
        await api.node(UUID)
        await api.node(UUID)
    assert [one.headers.get(VERSION) for one in ironic.requests] == [None, asked, asked]


async def test_the_version_is_found_in_the_description_of_the_api_too(ironic: FakeIronic) -> None:
    """Where a proxy takes headers away, and lets us see no more than the root."""
    said = {"default_version": {"version": "1.90"}}
    ironic.proxy = lambda request: (
        httpx.Response(200, json=said) if request.url.path == "/" else httpx.Response(403)
    )
    async with ironic.api() as api:
        assert await api.version() == (1, 90)


async def test_an_ironic_that_is_too_old_is_refused() -> None:
    async with FakeIronic(minor=10).api() as api:
        with pytest.raises(IronicRefused, match=r"1\.11 is the oldest"):
            await api.node(UUID)


@pytest.mark.parametrize("status", [200, 404])
async def test_what_is_no_ironic_is_refused(status: int) -> None:
    ironic = FakeIronic()
    ironic.proxy = lambda request: httpx.Response(status, text="It works!")
    async with ironic.api() as api:
        with pytest.raises(IronicRefused, match=r"http://ironic\.test does not answer as Ironic"):
            await api.version()


async def test_after_a_downgrade_the_version_is_agreed_anew(ironic: FakeIronic) -> None:
    async with ironic.api() as api:
        assert await api.node(UUID, ["uuid", "shard"]) == {"uuid": UUID, "shard": None}
        ironic.minor = 70
        assert await api.node(UUID, ["uuid", "shard"]) == {"uuid": UUID}
        assert await api.version() == (1, 70)


async def test_a_406_that_is_not_about_the_version_is_an_answer(ironic: FakeIronic) -> None:
    async with ironic.api() as api:
        await api.version()
        ironic.before = lambda request: fault(406, "no") if "nodes" in request.url.path else None
        with pytest.raises(IronicRefused, match="no") as refused:
            await api.node(UUID)
    assert refused.value.status == 406


@pytest.mark.parametrize(
    "minor, asked",
    [(115, "uuid,traits,conductor_group,shard"), (60, "uuid,traits,conductor_group"), (20, "uuid")],
)
async def test_fields_a_version_does_not_know_are_left_out(minor: int, asked: str) -> None:
    ironic = FakeIronic(minor=minor)
    ironic.have(1)
    async with ironic.api() as api:
        await api.node(UUID, ["uuid", "traits", "conductor_group", "shard"])
    assert ironic.requests[-1].url.params["fields"] == asked


async def test_filters_a_version_does_not_know_are_refused_for_they_would_let_all_through() -> None:
    async with FakeIronic(minor=70).api() as api:
        with pytest.raises(IronicRefused, match=r"filtering by shard takes API 1\.82"):
            await anext(api.nodes(shard=("a",)))


@pytest.mark.parametrize("url", ["http://i", "http://i/", "http://i/v1", "http://i/v1/"])
async def test_the_url_may_name_the_version_or_not(ironic: FakeIronic, url: str) -> None:
    async with IronicApi(Access(url=url), transport=ironic.transport) as api:
        assert await api.node(UUID) is not None
    assert ironic.requests[-1].url.path == f"/v1/nodes/{UUID}"


# Reads


async def test_a_node_that_is_not_there_is_none(ironic: FakeIronic) -> None:
    async with ironic.api() as api:
        assert await api.node(node_number(2)) is None


async def test_a_404_by_something_before_ironic_is_not_a_node_that_is_gone(
    ironic: FakeIronic, waits: list[float]
) -> None:
    async with ironic.api() as api:
        await api.version()
        ironic.proxy = lambda request: httpx.Response(404, text="no such route")
        with pytest.raises(IronicUnavailable, match="not from Ironic"):
            await api.node(UUID)


async def test_times_are_had_only_with_all_the_rest(ironic: FakeIronic) -> None:
    async with ironic.api() as api:
        found = await api.node(UUID, ["uuid", "updated_at"])
        assert found is not None and {"updated_at", "properties"} <= found.keys()
        (page,) = [page async for page in api.nodes(fields=["uuid", "created_at"])]
    assert page == [found]
    assert ironic.paths() == [f"/v1/nodes/{UUID}", "/v1/nodes/detail"]


async def test_pages_follow_each_other_whatever_the_server_gives_at_once() -> None:
    ironic = FakeIronic(most=3)
    uuids = [ironic.have(number) for number in range(1, 8)]
    async with ironic.api() as api:
        pages = [page async for page in api.nodes(fields=["uuid"], limit=1000)]
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [one["uuid"] for page in pages for one in page] == uuids


async def test_a_last_page_that_is_full_is_followed_by_none() -> None:
    ironic = FakeIronic(most=2)
    for number in range(4):
        ironic.have(number)
    async with ironic.api() as api:
        assert [len(page) async for page in api.nodes(fields=["uuid"])] == [2, 2]


@pytest.mark.parametrize("also_gone", [1, 2])
async def test_reading_goes_on_when_the_last_node_of_a_page_is_deleted_meanwhile(also_gone: int) -> None:
    ironic = FakeIronic(most=3)
    uuids = [ironic.have(number) for number in range(8)]
    async with ironic.api() as api:
        pages = api.nodes(fields=["uuid"])
        first = await anext(pages)
        for one in first[-also_gone:]:
            del ironic.nodes[one["uuid"]]
        rest = [one["uuid"] for page in [page async for page in pages] for one in page]
    assert rest == uuids[3:]


async def test_when_a_whole_page_is_deleted_it_goes_on_from_the_one_before() -> None:
    ironic = FakeIronic(most=2)
    uuids = [ironic.have(number) for number in range(8)]
    async with ironic.api() as api:
        pages = api.nodes(fields=["uuid"])
        await anext(pages)
        second = await anext(pages)
        for one in second:
            del ironic.nodes[one["uuid"]]
        rest = [one["uuid"] for page in [page async for page in pages] for one in page]
    assert rest == uuids[4:]


async def test_filters_and_order_are_ironics(ironic: FakeIronic) -> None:
    async with ironic.api() as api:
        _ = [
            page
            async for page in api.nodes(
                fields=["uuid"], conductor_group="", shard=("a", "b"), retired=False, sort_key="uuid"
            )
        ]
    assert dict(ironic.requests[-1].url.params) == {
        "fields": "uuid",
        "limit": "1000",
        "conductor_group": "",  # the default group, which is not the same as any
        "shard": "a,b",
        "retired": "false",
        "sort_key": "uuid",
    }


async def test_an_answer_without_a_list_is_not_an_ironic_without_nodes(ironic: FakeIronic) -> None:
    ironic.before = lambda request: httpx.Response(200, json={}) if "nodes" in request.url.path else None
    async with ironic.api() as api:
        with pytest.raises(IronicRefused, match="a list of nodes"):
            await anext(api.nodes())


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
async def test_reads_are_tried_again(ironic: FakeIronic, waits: list[float], how: Any) -> None:
    failing(ironic, how, READ_ATTEMPTS - 1)
    async with ironic.api() as api:
        assert await api.node(UUID) is not None
    assert len(waits) == READ_ATTEMPTS - 1 and all(wait > 0 for wait in waits)


@pytest.mark.parametrize("how", AWAY.values(), ids=AWAY.keys())
async def test_reads_are_not_tried_for_ever(ironic: FakeIronic, waits: list[float], how: Any) -> None:
    failing(ironic, how, 99)
    async with ironic.api() as api:
        with pytest.raises(IronicUnavailable, match=f"/v1/nodes/{UUID}"):
            await api.node(UUID)
    assert len(ironic.paths()) == READ_ATTEMPTS


@pytest.mark.parametrize("how", [how for name, how in AWAY.items() if "database" not in name])
async def test_writes_are_never_tried_again(ironic: FakeIronic, waits: list[float], how: Any) -> None:
    failing(ironic, how, 1)
    async with ironic.api() as api:
        with pytest.raises(IronicUnavailable):
            await api.set_provision_state(UUID, "active")
    assert len(ironic.paths("PUT")) == 1


async def test_a_refusal_is_told_in_ironics_words_at_once(ironic: FakeIronic, waits: list[float]) -> None:
    failing(ironic, lambda request: fault(409, "Node is locked by host one"), 99)
    async with ironic.api() as api:
        with pytest.raises(IronicRefused, match="Node is locked by host one") as refused:
            await api.node(UUID)
    assert (refused.value.status, len(ironic.paths()), waits) == (409, 1, [])


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


async def test_an_answer_that_is_no_json_is_refused(ironic: FakeIronic) -> None:
    failing(ironic, lambda request: httpx.Response(200, text="<html>"), 1)
    async with ironic.api() as api:
        with pytest.raises(IronicRefused, match="no JSON"):
            await api.node(UUID)


# Writes

WRITES: dict[str, tuple[Callable[[IronicApi], Any], str, str, Any]] = {
    "patch": (
        lambda api: api.patch_node(UUID, [{"op": "remove", "path": "/name"}]),
        "PATCH",
        f"/v1/nodes/{UUID}",
        [{"op": "remove", "path": "/name"}],
    ),
    "provision": (
        lambda api: api.set_provision_state(UUID, "active", configdrive="x"),
        "PUT",
        f"/v1/nodes/{UUID}/states/provision",
        {"target": "active", "configdrive": "x"},
    ),
    "power": (
        lambda api: api.set_power_state(UUID, "power on"),
        "PUT",
        f"/v1/nodes/{UUID}/states/power",
        {"target": "power on"},
    ),
    "maintenance on": (
        lambda api: api.set_maintenance(UUID, True, "broken"),
        "PUT",
        f"/v1/nodes/{UUID}/maintenance",
        {"reason": "broken"},
    ),
    "maintenance off": (
        lambda api: api.set_maintenance(UUID, False),
        "DELETE",
        f"/v1/nodes/{UUID}/maintenance",
        None,
    ),
    "traits": (
        lambda api: api.set_traits(UUID, ["CUSTOM_A"]),
        "PUT",
        f"/v1/nodes/{UUID}/traits",
        {"traits": ["CUSTOM_A"]},
    ),
    "create": (
        lambda api: api.create_node(name="n", driver="d"),
        "POST",
        "/v1/nodes",
        {"name": "n", "driver": "d"},
    ),
    "delete": (lambda api: api.delete_node(UUID), "DELETE", f"/v1/nodes/{UUID}", None),
}


@pytest.mark.parametrize("write, method, path, body", WRITES.values(), ids=WRITES.keys())
async def test_writes(ironic: FakeIronic, write: Any, method: str, path: str, body: Any) -> None:
    failing(ironic, lambda request: httpx.Response(204), 1)
    async with ironic.api() as api:
        await write(api)
    last = ironic.requests[-1]
    assert (last.method, last.url.path) == (method, path)
    assert (json.loads(last.content) if last.content else None) == body


async def test_a_name_with_strange_signs_stays_one_name(ironic: FakeIronic) -> None:
    async with ironic.api() as api:
        assert await api.node("../conductors?x=1") is None
    assert ironic.requests[-1].url.raw_path == b"/v1/nodes/..%2Fconductors%3Fx%3D1"


# Who we are


async def test_basic_authentication(ironic: FakeIronic) -> None:
    access = Access(url="http://i", auth="basic", user="me", password="s3cret")
    async with IronicApi(access, transport=ironic.transport) as api:
        await api.node(UUID)
    expected = "Basic " + base64.b64encode(b"me:s3cret").decode()
    assert [one.headers["Authorization"] for one in ironic.requests] == [expected, expected]


async def test_nobody_says_who_he_is(ironic: FakeIronic) -> None:
    async with ironic.api() as api:
        await api.node(UUID)
    assert not {"authorization", "x-auth-token"} & set(ironic.requests[-1].headers)


BAD = {
    "nowhere": ({}, "the url"),
    "a user in the url": ({"url": "http://me:pw@i"}, "names a user"),
    "basic without a user": ({"url": "http://i", "auth": "basic"}, "a user"),
    "keystone without keystone": ({"auth": "keystone"}, "auth_url"),
}


@pytest.mark.parametrize("given, says", BAD.values(), ids=BAD.keys())
def test_an_access_that_cannot_be(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        Access(**given)
    assert "pw" not in str(refused.value)


async def test_secrets_are_in_no_log_and_no_text(
    ironic: FakeIronic, caplog: pytest.LogCaptureFixture, waits: list[float]
) -> None:
    caplog.set_level(logging.DEBUG)
    access = Access(url="http://i", auth="basic", user="me", password="s3cret")
    failing(ironic, AWAY["unreachable"], 99)
    async with IronicApi(access, transport=ironic.transport) as api:
        with pytest.raises(IronicUnavailable) as away:
            await api.node(UUID)
    for text in (caplog.text, repr(access), str(away.value)):
        assert "s3cret" not in text and base64.b64encode(b"me:s3cret").decode() not in text


def test_only_who_says_so_trusts_anybody() -> None:
    usual, insecure = Access(url="https://i").trust(), Access(url="https://i", insecure=True).trust()
    assert (usual.verify_mode, usual.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (insecure.verify_mode, insecure.check_hostname) == (ssl.CERT_NONE, False)
