"""The simulated Ironic's API: what berth reads and writes there is answered as by a real Ironic."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from compute_sim.core.faults import Durations
from compute_sim.ironic.conductor import SimPlan
from compute_sim.ironic.node import enrolled
from compute_sim.ironic.simulation import Simulation
from ironic_sync.api import IronicApi, IronicRefused
from ironic_sync.openstack import Access
from tests.support.simulated_ironic import INSTANCE, NOW, OTHER, line
from tests.support.virtual_time import in_virtual_time

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


@pytest.mark.parametrize(
    "query", ["fields=uuid,nonsense", "nonsense=1", "limit=0", "sort_key=extra", f"marker={OTHER}"]
)
async def test_an_invalid_list_is_refused(client: httpx.AsyncClient, query: str) -> None:
    answer = await client.get(f"/v1/nodes?{query}")
    assert answer.status_code == (404 if "marker" in query else 400)
    assert fault_of(answer)


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
        ("PUT", f"/v1/nodes/{ALICE}/states/provision", {}, 400),
        ("PUT", f"/v1/nodes/{ALICE}/states/power", [], 400),
        ("PUT", "/v1/nodes/nobody/maintenance", {}, 404),
        ("DELETE", "/v1/nodes/nobody/maintenance", None, 404),
    ],
)
async def test_an_invalid_write_is_refused(
    client: httpx.AsyncClient, method: str, path: str, body: Any, status: int
) -> None:
    answer = await client.request(method, path, json=body)
    assert answer.status_code == status
    assert fault_of(answer)


ENROLLED = {
    "name": "new1", "driver": "fake-hardware", "resource_class": "gold",
    "properties": {"cpus": 16, "memory_mb": 65_536}, "extra": {"rack": "R1"},
}  # fmt: skip


@in_virtual_time
async def test_a_node_is_enrolled_and_made_available_with_the_notifications_of_a_real_ironic() -> None:
    sent: list[str] = []
    simulation = Simulation([])
    simulation.conductor.emit = lambda notification: sent.append(line(notification))
    transport = httpx.ASGITransport(app=simulation.app)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://ironic.test") as client,
        asyncio.TaskGroup() as simulation.conductor.tasks,
    ):
        answer = await client.post("/v1/nodes", json=ENROLLED)
        assert answer.status_code == 201
        node = answer.json()
        assert node == {**node, **ENROLLED, "provision_state": "enroll", "power_state": None, "traits": []}
        traits = {"traits": ["HW_CPU_X86_VMX", "CUSTOM_GOLD"]}
        assert (await client.put("/v1/nodes/new1/traits", json=traits)).status_code == 204
        assert (await client.put("/v1/nodes/new1/traits/CUSTOM_SSD")).status_code == 204
        assert (await client.delete("/v1/nodes/new1/traits/CUSTOM_GOLD")).status_code == 204
        assert (await client.get("/v1/nodes/new1/traits")).json() == {
            "traits": ["CUSTOM_SSD", "HW_CPU_X86_VMX"]
        }
        for target in ("manage", "provide"):
            answer = await client.put(f"/v1/nodes/{node['uuid']}/states/provision", json={"target": target})
            assert answer.status_code == 202
            await asyncio.sleep(1)
        node = (await client.get("/v1/nodes/new1")).json()
    assert (node["provision_state"], node["power_state"]) == ("available", "power off")
    assert sent == [
        "create.start: enroll, None", "create.end: enroll, None",
        *["update.start: enroll, None", "update.end: enroll, None"] * 3,
        "provision_set.start: verifying > manageable, None", "provision_set.end: manageable, power off",
        "power_state_corrected.success: manageable, power off",
        "provision_set.start: cleaning > available, power off", "provision_set.end: available, power off",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"driver": None}, 400, "'driver' is a required property"),
        ({"driver": "ipmi"}, 400, "only has fake-hardware"),
        ({"name": ALICE}, 409, "already exists"),
        ({"uuid": "x"}, 400, "Expected UUID"),
        ({"provision_state": "active"}, 400, "provision_state"),
        ({"properties": []}, 400, "not of the field's type"),
        ({"name": "a b"}, 400, "invalid name"),
    ],
)
async def test_an_invalid_enrolment_is_refused(
    client: httpx.AsyncClient, changes: dict[str, Any], status: int, says: str
) -> None:
    answer = await client.post("/v1/nodes", json={**ENROLLED, **changes})
    assert answer.status_code == status
    assert says in fault_of(answer)
    assert (await client.get("/v1/nodes/new1")).status_code == 404


async def test_a_node_is_enrolled_with_the_uuid_of_the_client_once(client: httpx.AsyncClient) -> None:
    first = await client.post("/v1/nodes", json={**ENROLLED, "uuid": OTHER})
    again = await client.post("/v1/nodes", json={**ENROLLED, "uuid": OTHER, "name": "new2"})
    assert (first.json()["uuid"], first.status_code, again.status_code) == (OTHER, 201, 409)
    assert (await client.get(f"/v1/nodes/{OTHER}")).json()["name"] == "new1"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", f"/v1/nodes/{ALICE}/traits", {"traits": ["gold"]}, 400),
        ("PUT", f"/v1/nodes/{ALICE}/traits", {"traits": "CUSTOM_A"}, 400),
        ("PUT", f"/v1/nodes/{ALICE}/traits/gold", None, 400),
        ("DELETE", f"/v1/nodes/{ALICE}/traits/CUSTOM_A", None, 404),
        ("PUT", "/v1/nodes/nobody/traits", {"traits": []}, 404),
    ],
)
async def test_an_invalid_change_of_traits_is_refused(
    client: httpx.AsyncClient, method: str, path: str, body: Any, status: int
) -> None:
    answer = await client.request(method, path, json=body)
    assert answer.status_code == status
    assert fault_of(answer)


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


@in_virtual_time
async def test_a_churn_keeps_to_its_rate() -> None:
    plan = SimPlan(step_time=Durations("constant", (0.005,)), churn=400.0)
    simulation = Simulation(enrolled(500, now=NOW), plan=plan)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(simulation.run())
        await asyncio.sleep(15.0)
        task.cancel()
    assert simulation.sent == pytest.approx(6000, rel=0.05)
