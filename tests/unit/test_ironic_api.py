"""Ironic's API from our side: which version is spoken, and what is read."""

import httpx
import pytest

from ironic_sync.api import IronicRefused, IronicUnavailable
from tests.support.fake_ironic import FakeIronic, fault, node_number

UUID = node_number(1)


# Which version


async def test_the_version_is_found_in_the_description_of_the_api_too(ironic: FakeIronic) -> None:
    reply = {"default_version": {"version": "1.90"}}
    ironic.proxy = lambda request: (
        httpx.Response(200, json=reply) if request.url.path == "/" else httpx.Response(403)
    )
    async with ironic.api() as api:
        assert await api.version() == (1, 90)


async def test_an_ironic_that_is_too_old_is_refused() -> None:
    async with FakeIronic(minor=10).api() as api:
        with pytest.raises(IronicRefused, match=r"1\.11 is our oldest"):
            await api.node(UUID)


@pytest.mark.parametrize("status", [200, 404])
async def test_a_server_that_is_not_ironic_is_refused(status: int) -> None:
    ironic = FakeIronic()
    ironic.proxy = lambda request: httpx.Response(status, text="It works!")
    async with ironic.api() as api:
        with pytest.raises(IronicRefused, match=r"http://ironic\.test does not answer as Ironic"):
            await api.version()


async def test_after_a_downgrade_the_version_is_negotiated_again(ironic: FakeIronic) -> None:
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


async def test_filters_a_version_does_not_know_are_refused_for_they_would_let_all_through() -> None:
    async with FakeIronic(minor=70).api() as api:
        with pytest.raises(IronicRefused, match=r"filtering by shard takes API 1\.82"):
            await anext(api.nodes(shard=("a",)))


# Reads


async def test_a_404_of_a_proxy_is_not_a_missing_node(ironic: FakeIronic, waits: list[float]) -> None:
    async with ironic.api() as api:
        await api.version()
        ironic.proxy = lambda request: httpx.Response(404, text="no such route")
        with pytest.raises(IronicUnavailable, match="not from Ironic"):
            await api.node(UUID)


@pytest.mark.parametrize("most, lengths", [(3, [3, 3, 2]), (4, [4, 4])], ids=["", "a full last page"])
async def test_pages_are_followed_with_any_server_limit(most: int, lengths: list[int]) -> None:
    ironic = FakeIronic(most=most)
    uuids = [ironic.have(number) for number in range(8)]
    async with ironic.api() as api:
        pages = [page async for page in api.nodes(fields=["uuid"], limit=1000)]
    assert [len(page) for page in pages] == lengths
    assert [one["uuid"] for page in pages for one in page] == uuids


@pytest.mark.parametrize(("read", "gone"), [(1, 1), (1, 2), (2, 2)], ids=["one", "two", "a whole page"])
async def test_listing_continues_if_the_marker_node_is_deleted(read: int, gone: int) -> None:
    ironic = FakeIronic(most=2)
    uuids = [ironic.have(number) for number in range(8)]
    async with ironic.api() as api:
        pages = api.nodes(fields=["uuid"])
        for _ in range(read):
            last = await anext(pages)
        for one in last[-gone:]:
            del ironic.nodes[one["uuid"]]
        rest = [one["uuid"] async for page in pages for one in page]
    assert rest == uuids[2 * read :]


async def test_an_answer_without_a_list_is_not_an_ironic_without_nodes(ironic: FakeIronic) -> None:
    ironic.before = lambda request: httpx.Response(200, json={}) if "nodes" in request.url.path else None
    async with ironic.api() as api:
        with pytest.raises(IronicRefused, match="no list of nodes"):
            await anext(api.nodes())
