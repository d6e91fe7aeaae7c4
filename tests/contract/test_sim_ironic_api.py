"""The simulated Ironic's API: versions, reads, writes and refusals are those of a real Ironic."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from compute_sim.core.faults import Durations
from compute_sim.ironic.conductor import SimPlan
from compute_sim.ironic.node import enrolled
from compute_sim.ironic.notify import IronicExchange
from compute_sim.ironic.simulation import Simulation
from ironic_sync.api import IronicApi, IronicRefused
from ironic_sync.exchanges import ForeignPublisher
from ironic_sync.openstack import Access
from tests.support.simulated_ironic import ALICE, INSTANCE, NOW, OTHER, client_of


def fault_of(response: httpx.Response) -> str:
    """Return the text of an error, which is in JSON inside the response's JSON."""
    assert list(response.json()) == ["error_message"]
    fault = json.loads(response.json()["error_message"])
    assert (fault["faultcode"], fault["debuginfo"]) == ("Client", None)
    return str(fault["faultstring"])


async def read_until(
    client: httpx.AsyncClient, path: str, check: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            answer: dict[str, Any] = (await client.get(path)).json()
            if check(answer):
                return answer
            await asyncio.sleep(0)  # let other tasks run, which the in-process application does not


async def names(client: httpx.AsyncClient, query: str) -> list[str]:
    return [node["name"][-2:] for node in (await client.get(f"/v1/nodes?{query}")).json()["nodes"]]


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
    assert node["provision_state"] is None  # null means available in old versions
    assert not {"name", "resource_class", "traits", "conductor_group", "shard"} & node.keys()


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


async def test_a_list_has_few_fields_unless_more_are_requested(client: httpx.AsyncClient) -> None:
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
async def test_a_list_can_be_filtered(client: httpx.AsyncClient, query: str, found: list[str]) -> None:
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


async def test_the_link_to_the_next_page_omits_filters_as_in_ironic(client: httpx.AsyncClient) -> None:
    page = (
        await client.get("/v1/nodes?limit=2&resource_class=gold&maintenance=false&associated=true")
    ).json()
    assert "next" not in page
    page = (await client.get("/v1/nodes?limit=2&resource_class=gold")).json()
    assert "resource_class" not in page["next"]


# Writes


async def test_maintenance_power_and_traits(client: httpx.AsyncClient) -> None:
    path = f"/v1/nodes/{ALICE}"
    assert (await client.put(f"{path}/maintenance", json={"reason": "a disk"})).status_code == 202
    assert (await client.get(path)).json()["maintenance_reason"] == "a disk"
    assert (await client.delete(f"{path}/maintenance")).status_code == 202
    assert (await client.put(f"{path}/states/power", json={"target": "power on"})).status_code == 202
    await read_until(client, f"{path}/states", lambda states: states["power_state"] == "power on")
    assert (await client.put(f"{path}/traits", json={"traits": ["CUSTOM_B", "HW_CPU_X86_VMX"]})).is_success
    assert (await client.put(f"{path}/traits/CUSTOM_A")).status_code == 204
    assert (await client.get(f"{path}/traits")).json() == {
        "traits": ["CUSTOM_A", "CUSTOM_B", "HW_CPU_X86_VMX"]
    }
    assert (await client.delete(f"{path}/traits/CUSTOM_B")).status_code == 204
    assert (await client.delete(f"{path}/traits/CUSTOM_B")).status_code == 404
    assert (await client.delete(f"{path}/traits")).status_code == 204
    assert (await client.get(path)).json()["traits"] == []


@pytest.mark.parametrize(
    ("operation", "status", "says"),
    [
        ({"op": "replace", "path": "/resource_class", "value": "Odd.name 2"}, 200, ""),
        ({"op": "add", "path": "/properties/rack", "value": "R9"}, 200, ""),
        ({"op": "remove", "path": "/instance_uuid"}, 200, ""),
        ({"op": "replace", "path": "/owner", "value": "bob"}, 200, ""),
        ({"op": "replace", "path": "/shard", "value": "s9"}, 200, ""),
        ({"op": "replace", "path": "/conductor_group", "value": "Rack7"}, 200, ""),
        ({"op": "replace", "path": "/extra/none", "value": 1}, 400, "non-existent"),
        ({"op": "replace", "path": "/fault", "value": "x"}, 400, "Cannot patch /fault"),
        ({"op": "add", "path": "/traits", "value": ["CUSTOM_A"]}, 400, "traits API"),
        ({"op": "test", "path": "/name", "value": "x"}, 400, "not one of"),
        ({"op": "replace", "path": "/name", "value": "a b"}, 400, "invalid name"),
        ({"op": "replace", "path": "/name", "value": "metal00002"}, 409, "already exists"),
        ({"op": "add", "path": "/instance_uuid", "value": INSTANCE}, 409, "already associated"),
        ({"op": "add", "path": "/instance_uuid", "value": "nonsense"}, 400, "UUID"),
        ({"op": "replace", "path": "/maintenance", "value": "maybe"}, 400, "maintenance"),
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
        ("PUT", f"/v1/nodes/{ALICE}/states/provision", {"target": "provide"}, 400),
        ("PUT", f"/v1/nodes/{ALICE}/states/provision", {}, 400),
        ("PUT", f"/v1/nodes/{ALICE}/states/power", {"target": "up"}, 400),
        ("PUT", f"/v1/nodes/{ALICE}/traits", {"traits": ["lower"]}, 400),
        ("PUT", "/v1/nodes/nobody/states/provision", {"target": "provide"}, 404),
        ("PUT", "/v1/nodes/nobody/maintenance", {}, 404),
        ("DELETE", "/v1/nodes/nobody", None, 404),
        ("PUT", "/sim/nodes/metal00001/fault", {"work": "clean", "fault": "nonsense"}, 400),
        ("PUT", "/sim/nodes/metal00001/bmc", {"says": "nonsense"}, 400),
    ],
)
async def test_refusals_have_ironics_error_format(
    client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None, status: int
) -> None:
    answer = await client.request(method, path, json=body)
    assert answer.status_code == status
    assert fault_of(answer)
    assert answer.headers["openstack-request-id"].startswith("req-")


async def test_a_storm_makes_many_nodes_available_together() -> None:
    sim = Simulation(enrolled(200, now=NOW, state="manageable"))
    async with client_of(sim) as client:
        answer = await client.put("/sim/storm", json={"target": "provide", "count": 150})
        assert answer.json() == {"nodes": 150}
        listed = "/v1/nodes?provision_state=available"
        await read_until(client, listed, lambda answer: len(answer["nodes"]) == 150)
        assert len(await names(client, "provision_state=manageable")) == 50


async def test_ironics_allocations_take_a_node(client: httpx.AsyncClient) -> None:
    made = (await client.post("/v1/allocations", json={"resource_class": "gold", "name": "mine"})).json()
    assert made["state"] == "allocating"
    taken = await read_until(client, "/v1/allocations/mine", lambda sent: sent["state"] == "active")
    node = (await client.get(f"/v1/nodes/{taken['node_uuid']}")).json()
    assert (node["instance_uuid"], node["allocation_uuid"]) == (made["uuid"], made["uuid"])
    assert (await client.delete("/v1/allocations/mine")).status_code == 204
    node = (await client.get(f"/v1/nodes/{taken['node_uuid']}")).json()
    assert (node["instance_uuid"], node["allocation_uuid"]) == (None, None)


async def test_a_request_without_the_password_is_refused() -> None:
    sim = Simulation(enrolled(1, now=NOW), login=("admin", "secret"))
    async with client_of(sim) as client:
        refused = await client.get("/v1/nodes")
        assert refused.status_code == 401
        assert refused.headers["WWW-Authenticate"].startswith("Basic")
        assert (await client.get("/v1/nodes", auth=("admin", "wrong"))).status_code == 401
        assert (await client.get("/v1/nodes", auth=("admin", "secret"))).status_code == 200


async def test_the_client_of_berth_works_with_the_simulated_api() -> None:
    sim = Simulation(enrolled(2500, now=NOW), plan=SimPlan(step_time=Durations("constant", (0.01,))))
    async with client_of(sim):
        access = Access(url="http://ironic.test")
        async with IronicApi(access, transport=httpx.ASGITransport(app=sim.app)) as api:
            pages = [page async for page in api.nodes(fields=("uuid", "shard"), resource_class="baremetal")]
            assert [len(page) for page in pages] == [1000, 1000, 500]
            node = pages[0][0]["uuid"]
            assert await api.node("nobody") is None
            await api.patch_node(node, [{"op": "add", "path": "/instance_uuid", "value": OTHER}])
            await api.set_provision_state(node, "active")
            with pytest.raises(IronicRefused) as refused:
                await api.patch_node(node, [{"op": "add", "path": "/extra", "value": {}}])
            assert refused.value.status == 409
            async with asyncio.timeout(60):
                while (await api.node(node) or {})["provision_state"] != "active":
                    await asyncio.sleep(0)


async def test_writes_wait_while_notifications_cannot_be_sent() -> None:
    class Full(IronicExchange):
        async def wait_for_space(self) -> None:
            await asyncio.Event().wait()

        async def run(self) -> None:
            await asyncio.Event().wait()

    async with client_of(
        Simulation(
            enrolled(1, now=NOW),
            sink=Full(ForeignPublisher("amqp://localhost/", "ironic", "simulated Ironic")),
        )
    ) as client:
        assert (await client.get(f"/v1/nodes/{ALICE}")).status_code == 200
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.put(f"/v1/nodes/{ALICE}/maintenance")
        assert not (await client.get(f"/v1/nodes/{ALICE}")).json()["maintenance"]
