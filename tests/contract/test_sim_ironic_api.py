"""The simulated Ironic's API: what berth reads and writes there is answered as by a real Ironic."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from compute_sim.ironic.node import enrolled
from compute_sim.ironic.simulation import Simulation
from ironic_sync.api import IronicApi, IronicRefused
from ironic_sync.openstack import Access
from tests.support.simulated_ironic import INSTANCE, NOW, OTHER

ALICE = "metal00001"


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    nodes = enrolled(25, now=NOW, conductor_groups=("", "rack1"), resource_classes=("baremetal", "gold"))
    for number, node in enumerate(nodes):
        node.shard = f"s{number % 3}" if number % 3 else None
        node.owner = "alice" if number % 5 == 0 else None
    nodes[3].maintenance = True
    nodes[5].provision_state = "manageable"
    nodes[7].updated_at = nodes[6].updated_at = NOW
    simulation = Simulation(nodes)
    simulation.conductor.change(nodes[4], instance_uuid=INSTANCE)
    transport = httpx.ASGITransport(app=simulation.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://ironic.test") as client:
        yield client


def fault_of(response: httpx.Response) -> str:
    """Return the text of an error, which is in JSON inside the response's JSON."""
    assert list(response.json()) == ["error_message"]
    fault = json.loads(response.json()["error_message"])
    assert (fault["faultcode"], fault["debuginfo"]) == ("Client", None)
    assert response.headers["X-OpenStack-Ironic-API-Maximum-Version"] == "1.115"
    assert response.headers["openstack-request-id"].startswith("req-")
    return str(fault["faultstring"])


async def test_a_node_is_found_by_uuid_and_by_name(client: httpx.AsyncClient) -> None:
    by_name = (await client.get(f"/v1/nodes/{ALICE}")).json()
    assert (await client.get(f"/v1/nodes/{by_name['uuid']}")).json() == by_name
    assert by_name["created_at"] == "2026-11-20T07:37:07+00:00"
    assert (by_name["resource_class"], by_name["conductor"]) == ("baremetal", "localhost")
    one = await client.get(f"/v1/nodes/{ALICE}?fields=uuid,traits,shard")
    assert one.json() == {"uuid": by_name["uuid"], "traits": [], "shard": None}
    assert (await client.get("/v1/nodes/detail?limit=1")).json()["nodes"] == [by_name]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("maintenance=true", ["04"]),
        (f"instance_uuid={INSTANCE}", ["05"]),
        ("provision_state=manageable", ["06"]),
        ("resource_class=gold&owner=alice", ["06", "16"]),
        ("conductor_group=rack1&owner=alice", ["06", "16"]),
        ("conductor_group=&limit=2", ["01", "03"]),
        ("shard=s1,s2&owner=alice", ["06", "11", "21"]),
        ("limit=2&sort_key=name&sort_dir=desc", ["25", "24"]),
    ],
)
async def test_a_list_can_be_filtered_and_sorted(
    client: httpx.AsyncClient, query: str, found: list[str]
) -> None:
    nodes = (await client.get(f"/v1/nodes?{query}")).json()["nodes"]
    assert [node["name"][-2:] for node in nodes] == found


@pytest.mark.parametrize("sort_dir", ["asc", "desc"])
async def test_nodes_without_a_sort_value_are_listed_first(client: httpx.AsyncClient, sort_dir: str) -> None:
    answer = await client.get(f"/v1/nodes/detail?sort_key=updated_at&sort_dir={sort_dir}")
    updated = [node["updated_at"] is not None for node in answer.json()["nodes"]]
    assert updated == sorted([False] * 22 + [True] * 3, reverse=sort_dir == "desc")


@pytest.mark.parametrize(
    "query", ["fields=uuid,nonsense", "nonsense=1", "limit=0", "sort_key=extra", f"marker={OTHER}"]
)
async def test_an_invalid_list_is_refused(client: httpx.AsyncClient, query: str) -> None:
    answer = await client.get(f"/v1/nodes?{query}")
    assert answer.status_code == (404 if "marker" in query else 400)
    assert fault_of(answer)


@pytest.mark.parametrize("sort", ["", "&sort_key=uuid&sort_dir=desc", "&sort_key=provision_updated_at"])
async def test_pages_hold_every_node_once(client: httpx.AsyncClient, sort: str) -> None:
    seen: list[str] = []
    url: str | None = f"/v1/nodes?limit=7&fields=uuid{sort}"
    while url:
        page = (await client.get(url)).json()
        assert all(node.keys() == {"uuid"} for node in page["nodes"])
        seen += [node["uuid"] for node in page["nodes"]]
        url = page.get("next")
    assert len(seen) == len(set(seen)) == 25
    if "uuid&" in sort:
        assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize(
    ("operation", "status", "says"),
    [
        ({"op": "add", "path": "/properties/rack", "value": "R9"}, 200, ""),
        ({"op": "remove", "path": "/instance_uuid"}, 200, ""),
        ({"op": "replace", "path": "/extra/none", "value": 1}, 400, "non-existent"),
        ({"op": "replace", "path": "/fault", "value": "x"}, 400, "Cannot patch /fault"),
        ({"op": "test", "path": "/name", "value": "x"}, 400, "not one of"),
        ({"op": "replace", "path": "/name", "value": "metal00002"}, 409, "already exists"),
        ({"op": "add", "path": "/instance_uuid", "value": INSTANCE}, 409, "already associated"),
    ],
)
async def test_a_patch_changes_only_permitted_fields(
    client: httpx.AsyncClient, operation: dict[str, Any], status: int, says: str
) -> None:
    answer = await client.patch(f"/v1/nodes/{ALICE}", json=[operation])
    assert answer.status_code == status
    if status >= 400:
        assert says in fault_of(answer)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/nodes", {"name": "no-driver"}, 400),
        ("POST", "/v1/nodes", {"driver": "ipmi", "nonsense": 1}, 400),
        ("POST", "/v1/nodes", {"driver": "ipmi", "name": ALICE}, 409),
        ("PUT", f"/v1/nodes/{ALICE}/states/provision", {}, 400),
        ("PUT", f"/v1/nodes/{ALICE}/traits", [], 400),
        ("PUT", "/v1/nodes/nobody/maintenance", {}, 404),
        ("DELETE", "/v1/nodes/nobody", None, 404),
    ],
)
async def test_an_invalid_write_is_refused(
    client: httpx.AsyncClient, method: str, path: str, body: Any, status: int
) -> None:
    answer = await client.request(method, path, json=body)
    assert answer.status_code == status
    assert fault_of(answer)


async def test_conductor_groups_are_stored_in_lower_case(client: httpx.AsyncClient) -> None:
    operation = {"op": "add", "path": "/conductor_group", "value": "Rack7"}
    answer = await client.patch(f"/v1/nodes/{ALICE}", json=[operation])
    assert answer.json()["conductor_group"] == "rack7"


async def test_other_versions_than_the_newest_are_refused(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/nodes", headers={"X-OpenStack-Ironic-API-Version": "1.82"})
    assert answer.status_code == 406
    assert "only has 1.115" in fault_of(answer)


async def test_the_client_of_berth_works_with_the_simulated_api() -> None:
    sim = Simulation(enrolled(2500, now=NOW))
    async with IronicApi(Access(url="http://ironic.test"), transport=httpx.ASGITransport(app=sim.app)) as api:
        pages = [page async for page in api.nodes(fields=("uuid", "shard"), resource_class="baremetal")]
        assert [len(page) for page in pages] == [1000, 1000, 500]
        node = pages[0][0]["uuid"]
        assert await api.node("nobody") is None
        await api.patch_node(node, [{"op": "add", "path": "/instance_uuid", "value": OTHER}])
        async with asyncio.TaskGroup() as sim.conductor.tasks:
            await api.set_provision_state(node, "active")
            with pytest.raises(IronicRefused) as refused:
                await api.patch_node(node, [{"op": "add", "path": "/extra", "value": {}}])
        assert refused.value.status == 409
