"""The simulated Ironic's API: versions and reads as clients of a real one meet them."""

import httpx
import pytest

from tests.support.simulated_ironic import ALICE, INSTANCE, OTHER, fault_of, names

# Versions


@pytest.mark.parametrize(("asked", "answered"), [("1.1", "1.1"), ("1.82", "1.82"), ("latest", "1.115")])
async def test_a_supported_version_is_accepted(client: httpx.AsyncClient, asked: str, answered: str) -> None:
    for path in ("/", "/v1", "/v1/nodes"):
        answer = await client.get(path, headers={"X-OpenStack-Ironic-API-Version": asked})
        assert answer.status_code == 200
        assert answer.headers["X-OpenStack-Ironic-API-Version"] == answered


@pytest.mark.parametrize("asked", ["1.0", "1.116", "2.1", "new", "1"])
async def test_an_unsupported_version_is_refused_with_the_supported_range(
    client: httpx.AsyncClient, asked: str
) -> None:
    answer = await client.get("/v1/nodes", headers={"X-OpenStack-Ironic-API-Version": asked})
    assert answer.status_code == 406
    assert fault_of(answer)
    assert answer.headers["X-OpenStack-Ironic-API-Minimum-Version"] == "1.1"
    assert answer.headers["X-OpenStack-Ironic-API-Maximum-Version"] == "1.115"


async def test_a_request_without_a_version_gets_the_oldest(client: httpx.AsyncClient) -> None:
    del client.headers["X-OpenStack-Ironic-API-Version"]
    node = (await client.get(f"/v1/nodes/{ALICE}")).json()
    assert node["provision_state"] is None  # what available was called
    assert not {"name", "resource_class", "traits", "conductor_group", "shard"} & node.keys()


async def test_the_root_document_lists_the_versions(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/")).json()
    version = answer["default_version"]
    assert (version["id"], version["min_version"], version["version"]) == ("v1", "1.1", "1.115")
    assert version["links"][0]["href"] == "http://ironic.test/v1/"


@pytest.mark.parametrize(
    ("version", "path", "status"),
    [
        ("1.45", "/v1/nodes?conductor_group=rack1", 406),
        ("1.46", "/v1/nodes?conductor_group=rack1", 200),
        ("1.81", "/v1/nodes?shard=s1", 406),
        ("1.82", "/v1/nodes?shard=s1", 200),
        ("1.20", "/v1/nodes?fields=uuid,resource_class", 406),
        ("1.21", "/v1/nodes?fields=uuid,resource_class", 200),
        ("1.115", "/v1/nodes?fields=uuid,nonsense", 400),
        ("1.115", "/v1/nodes?provision_state=nonsense", 400),
        ("1.115", "/v1/nodes?nonsense=1", 400),
        ("1.115", "/v1/nodes?limit=0", 400),
        ("1.115", "/v1/nodes?sort_key=extra", 400),
        ("1.115", f"/v1/nodes?marker={OTHER}", 404),
        ("1.115", "/v1/nodes/nobody", 404),
        ("1.115", "/v1/nonsense", 404),
    ],
)
async def test_fields_and_filters_depend_on_the_version(
    client: httpx.AsyncClient, version: str, path: str, status: int
) -> None:
    answer = await client.get(path, headers={"X-OpenStack-Ironic-API-Version": version})
    assert answer.status_code == status
    if status >= 400:
        assert fault_of(answer)


# Reads


async def test_a_node_is_found_by_uuid_and_by_name(client: httpx.AsyncClient) -> None:
    by_name = (await client.get(f"/v1/nodes/{ALICE}")).json()
    assert (await client.get(f"/v1/nodes/{by_name['uuid']}")).json() == by_name
    assert by_name["created_at"] == "2026-11-20T07:37:07+00:00"
    assert by_name["resource_class"] == "baremetal"
    assert by_name["conductor"] == "localhost"
    one = await client.get(f"/v1/nodes/{ALICE}?fields=uuid,traits,shard")
    assert one.json() == {"uuid": by_name["uuid"], "traits": [], "shard": None}


async def test_a_list_shows_little_unless_it_is_asked_for_more(client: httpx.AsyncClient) -> None:
    short = (await client.get("/v1/nodes?limit=1")).json()["nodes"][0]
    assert short.keys() == {
        "uuid", "name", "instance_uuid", "maintenance", "power_state", "provision_state", "links",
    }  # fmt: skip
    for path in ("/v1/nodes/detail?limit=1", "/v1/nodes?limit=1&detail=true"):
        assert len((await client.get(path)).json()["nodes"][0]) > 60


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("maintenance=true", ["04"]),
        ("maintenance=false&associated=true", ["05"]),
        (f"instance_uuid={INSTANCE}", ["05"]),
        ("provision_state=manageable", ["06"]),
        ("owner=alice", ["01", "06", "11", "16", "21"]),
        ("resource_class=gold&owner=alice", ["06", "16"]),
        ("conductor_group=rack1&owner=alice", ["06", "16"]),
        ("shard=s1,s2&owner=alice", ["06", "11", "21"]),
        ("sharded=false&owner=alice", ["01", "16"]),
        ("limit=3", ["01", "02", "03"]),
        ("limit=2&sort_key=name&sort_dir=desc", ["25", "24"]),
        ("limit=2&sort_dir=desc", ["25", "24"]),
    ],
)
async def test_a_list_can_be_narrowed(client: httpx.AsyncClient, query: str, found: list[str]) -> None:
    assert await names(client, query) == found


@pytest.mark.parametrize("sort", ["", "&sort_key=uuid", "&sort_key=uuid&sort_dir=desc", "&sort_key=name"])
async def test_pages_hold_every_node_once(client: httpx.AsyncClient, sort: str) -> None:
    seen: list[str] = []
    url: str | None = f"/v1/nodes?limit=7&fields=uuid{sort}"
    while url:
        page = (await client.get(url)).json()
        assert all(node.keys() == {"uuid"} for node in page["nodes"])
        seen += [node["uuid"] for node in page["nodes"]]
        url = page.get("next")
    assert len(seen) == len(set(seen)) == 25
    if "uuid" in sort:
        assert seen == sorted(seen, reverse="desc" in sort)


async def test_the_link_to_the_next_page_forgets_filters_as_ironic_does(client: httpx.AsyncClient) -> None:
    page = (
        await client.get("/v1/nodes?limit=2&resource_class=gold&maintenance=false&associated=true")
    ).json()
    assert "next" not in page
    page = (await client.get("/v1/nodes?limit=2&resource_class=gold")).json()
    assert "resource_class" not in page["next"]
