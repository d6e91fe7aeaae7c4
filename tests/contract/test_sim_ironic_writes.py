"""The simulated Ironic's API: writes and refusals as clients of a real one meet them."""

import asyncio
from typing import Any

import httpx
import pytest

from bus.openstack import Access
from compute_sim.core.faults import Durations
from compute_sim.ironic import IronicExchange, SimPlan, Simulation, enrolled
from ironic_sync.api import IronicApi, IronicRefused
from tests.support.simulated_ironic import (
    ALICE,
    INSTANCE,
    NOW,
    OTHER,
    client_of,
    fault_of,
    in_state,
    names,
    read_until,
)


async def test_a_node_is_followed_from_create_to_delete(client: httpx.AsyncClient) -> None:
    made = await client.post("/v1/nodes", json={"driver": "ipmi", "name": "new", "resource_class": "gold"})
    assert made.status_code == 201
    node = made.json()["uuid"]
    assert made.json()["provision_state"] == "enroll"
    for target, state in (("manage", "manageable"), ("provide", "available")):
        assert (
            await client.put("/v1/nodes/new/states/provision", json={"target": target})
        ).status_code == 202
        await in_state(client, node, state)
    claim = [{"op": "add", "path": "/instance_uuid", "value": OTHER}]
    assert (await client.patch(f"/v1/nodes/{node}", json=claim)).json()["instance_uuid"] == OTHER
    assert (await client.put("/v1/nodes/new/states/provision", json={"target": "active"})).status_code == 202
    active = await in_state(client, node, "active")
    assert (active["instance_uuid"], active["power_state"]) == (OTHER, "power off")
    refused = await client.delete(f"/v1/nodes/{node}")
    assert refused.status_code == 409
    assert (await client.put("/v1/nodes/new/states/provision", json={"target": "deleted"})).status_code == 202
    free = await in_state(client, node, "available")
    assert (free["instance_uuid"], free["instance_info"]) == (None, {})
    assert (await client.delete(f"/v1/nodes/{node}")).status_code == 204
    assert (await client.get(f"/v1/nodes/{node}")).status_code == 404


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


async def test_a_claimed_node_is_not_claimed_again(client: httpx.AsyncClient) -> None:
    claim = [{"op": "add", "path": "/instance_uuid", "value": OTHER}]
    answer = await client.patch("/v1/nodes/metal00005", json=claim)
    assert answer.status_code == 409
    assert fault_of(answer).endswith(f"is associated with instance {INSTANCE}.")


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


async def test_a_fault_can_be_injected_into_a_node(client: httpx.AsyncClient) -> None:
    path = "/sim/nodes/metal00006/fault"
    assert (await client.put(path, json={"work": "clean", "fault": "step"})).status_code == 204
    await client.put("/v1/nodes/metal00006/states/provision", json={"target": "provide"})
    failed = await in_state(client, "metal00006", "clean failed")
    assert (failed["maintenance"], failed["fault"]) == (True, "clean failure")


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
    taken = await read_until(client, "/v1/allocations/mine", lambda told: told["state"] == "active")
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


async def test_berths_own_client_gets_along_with_it() -> None:
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

    async with client_of(Simulation(enrolled(1, now=NOW), voice=Full("amqp://localhost/"))) as client:
        assert (await client.get(f"/v1/nodes/{ALICE}")).status_code == 200
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.put(f"/v1/nodes/{ALICE}/maintenance")
        assert not (await client.get(f"/v1/nodes/{ALICE}")).json()["maintenance"]
