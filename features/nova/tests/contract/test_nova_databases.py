"""The bridge reads Nova's databases, in PostgreSQL and in MariaDB."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from bus.clock import Clock
from bus.errors import Unavailable
from features.nova.core.cloud import MirroredAggregate, NovaCell
from features.nova.databases import CELL0, NovaDatabases
from features.nova.tests.support.nova_builders import a_spec
from features.nova.tests.support.nova_database import (
    CELL,
    NewDatabase,
    NovaTables,
    add_cell,
    add_host,
    add_instance,
    nova_tables,
)
from tests.support.ids import uid

pytestmark = pytest.mark.services


@dataclass
class ReadRegion:
    """A Nova with one cell and two hosts."""

    api: NovaTables
    cell: NovaTables
    databases: NovaDatabases


@pytest_asyncio.fixture
async def region(new_database: NewDatabase) -> AsyncIterator[ReadRegion]:
    async with (
        new_database() as first, new_database() as second,
        nova_tables(first, is_api=True) as api, nova_tables(second) as cell,
    ):  # fmt: skip
        await add_cell(api, cell, uuid=CELL0)
        cell_id = await add_cell(api, cell)
        for number in (1, 2):
            await add_host(api, cell, number, cell_id=cell_id)
        databases = NovaDatabases(api.url, {}, Clock())
        yield ReadRegion(api, cell, databases)
        await databases.close()


async def test_cells_hosts_and_aggregates_are_read(region: ReadRegion) -> None:
    await add_host(region.api, region.cell, 3, cell_id=None)  # not mapped to a cell
    aggregate = await region.api.add("aggregates", uuid=uid(1, "d"), name="rack")
    for host in ("host-2", "host-1"):
        await region.api.add("aggregate_hosts", aggregate_id=aggregate, host=host)
    await region.api.add("aggregate_metadata", aggregate_id=aggregate, key="ssd", value="true")
    cloud = await region.databases.read()
    assert cloud.cells == {CELL: NovaCell(CELL, "cell1")}
    assert cloud.aggregates == {
        uid(1, "d"): MirroredAggregate(uid(1, "d"), "rack", {"ssd": "true"}, ("host-1", "host-2"))
    }
    found = {host.root: (host.host, host.node, host.cell, host.version) for host in cloud.hosts.values()}
    assert found == {uid(number, "a"): (f"host-{number}", f"host-{number}", CELL, 74) for number in (1, 2)}
    state = cloud.hosts[uid(1, "a")].state
    assert (state.enabled, state.instances, state.hypervisor) == (True, 1, "QEMU")
    [unmapped] = cloud.unmapped.values()
    assert (unmapped.host, unmapped.state.enabled) == ("host-3", False)
    assert "run nova-manage cell_v2 discover_hosts" in unmapped.state.why_disabled


async def test_changes_of_services_and_nodes_are_read(region: ReadRegion) -> None:
    await region.databases.read()
    await region.cell.run(
        "UPDATE services SET disabled = true, disabled_reason = 'broken' WHERE host = 'host-1'",
        "UPDATE compute_nodes SET stats = '{\"num_instances\": \"7\"}' WHERE host = 'host-1'",
        "UPDATE services SET last_seen_up = '2020-01-01 00:00:00' WHERE host = 'host-2'",
    )
    hosts = (await region.databases.read()).hosts
    first, second = hosts[uid(1, "a")].state, hosts[uid(2, "a")].state
    assert (first.enabled, first.instances) == (False, 7)
    assert first.why_disabled == "its nova-compute is disabled: broken"
    assert second.why_disabled == "its nova-compute is down since 2020-01-01 00:00:00 UTC"


async def test_nova_waits_for_instances_that_are_not_built_or_have_a_task(region: ReadRegion) -> None:
    await region.databases.read()
    await region.api.add("build_requests", instance_uuid=uid(1))
    for number, task in ((2, "resize_prep"), (3, None)):
        await add_instance(region.cell, number, host=1, task_state=task)
        await region.api.add("instance_mappings", instance_uuid=uid(number), cell_id=2)
    waits = [await region.databases.still_waits([uid(number)]) for number in (1, 2, 3, 4)]
    assert waits == [True, True, False, False]


async def test_the_stored_request_of_an_instance_is_read(region: ReadRegion) -> None:
    spec = a_spec(availability_zone="az1")
    await region.api.add("request_specs", instance_uuid=uid(1), spec=json.dumps(spec))
    found = await region.databases.request_spec(uid(1))
    assert found is not None
    assert (found.availability_zone, found.flavor.vcpus) == ("az1", 2)
    assert await region.databases.request_spec(uid(2)) is None


async def test_an_unreachable_cell_keeps_its_hosts(region: ReadRegion) -> None:
    await region.databases.read()
    url = region.cell.url.replace("127.0.0.1", "127.0.0.2")
    await region.api.run(f"UPDATE cell_mappings SET database_connection = '{url}' WHERE name = 'cell1'")
    assert (await region.databases.read()).hosts.keys() == {uid(1, "a"), uid(2, "a")}
    await region.api.run("DROP TABLE host_mappings")
    with pytest.raises(Unavailable, match="nova's API database"):
        await region.databases.read()
