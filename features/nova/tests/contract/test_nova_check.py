"""`berth openstack check` reads databases in Nova's schema, a Placement and a queue, and changes nothing."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aio_pika
import httpx
import pytest
import pytest_asyncio
from sqlalchemy.engine import make_url

from berth.kit import PlacementClient, Settings
from bus.clock import Clock
from features.nova import check as nova_check
from features.nova import inspection
from features.nova.core.facts import InstanceFacts, NodeFacts
from features.nova.databases import CELL0
from features.nova.oslo.server import RpcAddress
from features.nova.oslo.topic import TopicQueue, observe
from features.nova.takeover.facts import TakeoverFacts, TakeoverFinding
from features.nova.takeover.judgement import judged
from features.nova.tests.support.nova_database import (
    NewDatabase,
    NovaTables,
    add_cell,
    add_flavor,
    add_host,
    add_instance,
    add_service,
    nova_tables,
)
from tests.support.command_line import CommandLine
from tests.support.http_placement import HttpPlacement, an_api, claim_in_json
from tests.support.ids import uid

pytestmark = pytest.mark.services


@dataclass
class CheckedRegion:
    """A Nova with two hosts and one instance, and a Placement that has both."""

    api: NovaTables
    cell0: NovaTables
    cell: NovaTables
    http: HttpPlacement

    def settings(self, **given: str) -> Settings:
        nova = {"nova_database_url": self.api.url, **given}
        return Settings().having(**nova)

    async def observe(self, **given: str) -> TakeoverFacts:
        transport = httpx.ASGITransport(self.http.app, raise_app_exceptions=True)
        client = PlacementClient("http://placement", "admin", transport=transport)
        return await nova_check.observed(self.settings(**given), client)

    async def findings(self, about: str) -> list[TakeoverFinding]:
        return [finding for finding in judged(await self.observe()) if finding.about == about]


@pytest_asyncio.fixture
async def region(new_database: NewDatabase) -> AsyncIterator[CheckedRegion]:
    async with (
        new_database() as first, new_database() as second, new_database() as third,
        nova_tables(first, is_api=True) as api, nova_tables(second) as cell0, nova_tables(third) as cell,
        an_api("sqlite+aiosqlite://") as http,
    ):  # fmt: skip
        await add_cell(api, cell0, uuid=CELL0)
        cell_id = await add_cell(api, cell)
        await add_flavor(api, "m1")
        await add_service(cell0, "nova-scheduler", "controller")
        for number in (1, 2):
            root = await add_host(api, cell, number, cell_id=cell_id)
            await http.made("/resource_providers", {"name": f"host-{number}", "uuid": root}, method="POST")
            inventory = {"inventories": {"VCPU": {"total": 8}}, "resource_provider_generation": 0}
            await http.made(f"/resource_providers/{root}/inventories", inventory)
            traits = {"traits": ["COMPUTE_NODE", "OWNER_NOVA"], "resource_provider_generation": 1}
            await http.made(f"/resource_providers/{root}/traits", traits)
        await hold(http, await add_instance(cell, 1, host=1), 1)
        yield CheckedRegion(api, cell0, cell, http)


async def hold(http: HttpPlacement, consumer: str, host: int) -> None:
    await http.made(f"/allocations/{consumer}", claim_in_json((uid(host, "a"), {"VCPU": 1})))


async def test_all_facts_of_a_region_are_read(region: CheckedRegion) -> None:
    await add_flavor(region.api, "pinned", {"hw:cpu_policy": "dedicated"})
    for key, value, deleted in (
        ("image_hw_numa_nodes", "2", 0), ("image_hw_cpu_policy", "mixed", 0), ("image_os_type", "linux", 0),
        ("image_hw_mem_page_size", "large", 7), ("boot_roles", "admin", 0),
    ):  # fmt: skip
        await region.cell.add(
            "instance_system_metadata", instance_uuid=uid(1), key=key, value=value, deleted=deleted
        )
    aggregate = await region.api.add("aggregates", uuid=uid(1, "d"), name="rack")
    await region.api.add("aggregate_hosts", aggregate_id=aggregate, host="host-1")
    await region.api.add("build_requests", instance_uuid=uid(2))
    await region.cell.add("migrations", uuid=uid(3), status="migrating")
    await region.cell.add("migrations", uuid=uid(4), status="confirmed")
    facts = (await region.observe()).nova
    assert [database.name for database in facts.databases] == ["the API", "cell0", "cell1"]
    assert facts.is_complete and all(abs(database.ahead) < 30 for database in facts.databases)
    assert facts.nodes[0] == NodeFacts(
        uuid=uid(1, "a"), host="host-1", name="host-1", cell="cell1", mapped_to="cell1"
    )
    active = InstanceFacts(host="host-1", node="host-1", state="active", task="", flavor=1)
    assert facts.instances == {uid(1): active}
    assert sorted(service.binary for service in facts.services if service.is_up) == [
        "nova-compute", "nova-compute", "nova-scheduler",
    ]  # fmt: skip
    assert (facts.building, facts.migrations) == ({uid(2)}, {uid(3)})
    assert facts.image_properties == {uid(1): {"hw_numa_nodes": "2", "hw_cpu_policy": "mixed"}}
    assert facts.flavors[2].extra_specs == {"hw:cpu_policy": "dedicated"}
    assert facts.aggregates[uid(1, "d")].hosts == ("host-1",)


async def test_all_pages_are_read(region: CheckedRegion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "PAGE", 2)
    for number in range(2, 7):
        await add_instance(region.cell, number, host=1)
    assert len((await region.observe()).nova.instances) == 6


async def test_users_with_and_without_write_permission_are_distinguished(region: CheckedRegion) -> None:
    assert all(database.can_write for database in (await region.observe()).nova.databases)
    name = f"reader_{uid(1)[:8]}_{id(region)}"
    address = make_url(region.cell.url)
    is_mariadb, user = address.get_backend_name() == "mysql", name
    if is_mariadb:
        user = f"{name}@127.0.0.1"
        await region.cell.run(f"CREATE USER {user} IDENTIFIED BY 'secret'")
    else:
        await region.cell.run(f"CREATE USER {name} PASSWORD 'secret'")
    tables = f"{address.database}.*" if is_mariadb else "ALL TABLES IN SCHEMA public"
    try:
        await region.cell.run(f"GRANT SELECT ON {tables} TO {user}")
        url = address.set(username=name, password="secret").render_as_string(hide_password=False)
        read = inspection.NovaInspection(region.api.url, {"cell1": url}, Clock())
        found = {database.name: database for database in (await read.read()).databases}
        assert (found["cell1"].problem, found["cell1"].can_write) == ("", False)
    finally:
        owned = [] if is_mariadb else [f"DROP OWNED BY {name}"]
        await region.cell.run(*owned, f"DROP USER {user}")


async def test_an_unreachable_cell_and_a_template_are_findings_and_nothing_is_called_an_orphan(
    region: CheckedRegion,
) -> None:
    await region.api.run("UPDATE cell_mappings SET database_connection = "
                         "'postgresql://nobody:x@127.0.0.1:1/none' WHERE name = 'cell1'")  # fmt: skip
    [found] = await region.findings("database of cell1")
    assert found.level == "error" and "cannot be read" in found.says
    assert await region.findings("allocations") == []
    await region.api.run("UPDATE cell_mappings SET database_connection = '{scheme}://{hostname}/nova'"
                         " WHERE name = 'cell1'")  # fmt: skip
    [found] = await region.findings("database of cell1")
    assert "template" in found.says and "nova_cell_database_urls.cell1" in found.do


async def test_cell0_needs_no_url(region: CheckedRegion) -> None:
    await region.api.run("UPDATE cell_mappings SET database_connection = '{scheme}://{hostname}/nova_cell0'"
                         f" WHERE uuid = '{CELL0}'")  # fmt: skip
    await hold(region.http, uid(9), 2)
    facts = await region.observe()
    assert facts.nova.is_complete
    found = {finding.about: finding.level for finding in judged(facts)}
    assert (found["database of cell0"], found["allocations"]) == ("note", "warning")


async def test_the_options_of_nova_scheduler_are_compared_with_the_settings(
    region: CheckedRegion, tmp_path: Path
) -> None:
    conf = tmp_path / "nova.conf"
    conf.write_text("[scheduler]\nlimit_tenants_to_placement_aggregate = true\n")
    [found] = [
        finding
        for finding in judged(await region.observe(nova_conf=str(conf)))
        if finding.about == "options of nova-scheduler"
    ]
    assert (found.level, found.do) == ("error", "Set tenant_aggregates = optional.")
    given = {"nova_conf": str(conf), "tenant_aggregates": "optional"}
    assert not any(finding.about == found.about for finding in judged(await region.observe(**given)))


async def test_orphans_and_missing_allocations_are_found(region: CheckedRegion) -> None:
    await hold(region.http, uid(9), 2)
    await add_instance(region.cell, 2, host=2)
    says = sorted(finding.says for finding in await region.findings("allocations"))
    assert says == [
        f"1 consumer neither an instance nor a migration of Nova: {uid(9)}.",
        f"1 instance without allocations on their host: {uid(2)} (on host-2, without allocations).",
    ]


async def test_changes_by_nova_during_the_check_are_no_findings(
    region: CheckedRegion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A boot or a deletion between both reads looks like an error, so suspects are read again."""
    read = PlacementClient.world

    async def read_after_changes(client: PlacementClient) -> object:
        await hold(region.http, await add_instance(region.cell, 2, host=2), 2)
        await region.cell.run(f"UPDATE instances SET deleted = id WHERE uuid = '{uid(1)}'")
        await region.http("DELETE", f"/allocations/{uid(1)}")
        return await read(client)

    monkeypatch.setattr(PlacementClient, "world", read_after_changes)
    assert await region.findings("allocations") == []


async def test_the_queue_of_the_scheduler_is_read_and_not_made(amqp_url: str, bus_name: str) -> None:
    address = RpcAddress(url=amqp_url, exchange=f"{bus_name}_nova", topic=f"{bus_name}_scheduler")
    assert await observe(address, name="test") == TopicQueue()
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(address.topic, auto_delete=True, durable=True)
        await queue.consume(ignore)
        found = await observe(address, name="test")
        assert (found.exists, found.consumers) == (True, 1)
        assert "durable" in found.mismatch
        fitting = RpcAddress(url=amqp_url, exchange="e", topic=address.topic, durable=True)
        assert "auto_delete" in (await observe(fitting, name="test")).mismatch
        await channel.close()
    assert await observe(address, name="test") == TopicQueue()


async def ignore(message: object) -> None:
    pass


async def test_an_unreachable_broker_is_reported() -> None:
    found = await observe(RpcAddress(url="amqp://127.0.0.1:1/", exchange="nova", topic="s"), name="test")
    assert not found.exists and found.problem


async def test_the_command_prints_findings_and_exits_with_the_worst(
    region: CheckedRegion, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = CommandLine("openstack", monkeypatch, capsys)
    monkeypatch.setenv("BERTH_NOVA_DATABASE_URL", region.api.url)
    printed = await run("check", "--step", "placement", "--url", "http://127.0.0.1:1", ends=2)
    assert "error   Placement at http://127.0.0.1:1: " in printed and "warning database of cell1" in printed
    [found] = await run.json("check", "--step", "placement", "--url", "http://127.0.0.1:1", ends=2)
    assert (found["exit_code"], found["step"]) == (2, "placement")
    assert json.dumps(found["findings"][0]["do"])
