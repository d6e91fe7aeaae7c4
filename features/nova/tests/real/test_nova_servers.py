"""Servers of a real Nova are booted, moved and deleted, and Placement follows: OpenStack's, and berth."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from deploy.nova import NovaRegion, openstack_placement
from deploy.nova_client import wait_until
from features.nova.tests.real.checks import SECONDS, audit, check_allocations

pytestmark = [pytest.mark.nova, pytest.mark.services, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def _allocations_are_right(region: NovaRegion) -> AsyncIterator[None]:
    """At the end of each test, allocations must be right, with its servers and after their deletion."""
    before = set(region.problems())
    yield
    await check_allocations(region)
    if region.placement_factory is not openstack_placement:
        report = await audit(region.foundation.database_url)
        assert report["clean"], report["breaches"]
    await region.nova.delete(*[server["id"] for server in await region.nova.servers()], seconds=SECONDS)
    await check_allocations(region)
    assert [line for line in region.problems() if line not in before and is_about_placement(line)] == []


def is_about_placement(line: str) -> bool:
    return "placement" in line.lower() or "nova.scheduler.client.report" in line


async def test_twenty_servers_become_active(region: NovaRegion) -> None:
    servers = await asyncio.gather(*(region.nova.boot(f"server-{number}") for number in range(20)))
    found = await region.nova.active(*servers, seconds=SECONDS)
    assert {server["OS-EXT-SRV-ATTR:host"] for server in found} <= set(region.hosts)


async def test_a_multi_create_places_every_server(region: NovaRegion) -> None:
    servers = await region.nova.boot_many(6)
    assert len(servers) == 6
    await region.nova.active(*servers, seconds=SECONDS)


async def test_a_server_that_fits_nowhere_ends_in_error(region: NovaRegion) -> None:
    flavor = await region.nova.create_flavor("too-large", vcpus=17)
    server = await region.nova.boot(flavor=flavor)
    await region.nova.reaches(server, "ERROR", seconds=SECONDS)

    async def has_fault() -> bool:  # Nova stores it a moment after the status
        fault = (await region.nova.server(server)).get("fault", {})
        return "No valid host was found" in fault.get("message", "")

    await wait_until(has_fault, "the fault is stored", SECONDS)


async def test_a_resize_is_confirmed_or_reverted(region: NovaRegion) -> None:
    flavor = await region.nova.create_flavor("larger", vcpus=2, ram=1024, disk=2)
    confirmed, reverted = await region.nova.boot(), await region.nova.boot()
    first, second = await region.nova.active(confirmed, reverted, seconds=SECONDS)
    await region.nova.resize(confirmed, flavor)
    await region.nova.resize(reverted, flavor)
    moved = await region.nova.confirm(confirmed)
    back = await region.nova.revert(reverted)
    assert moved["flavor"]["vcpus"] == 2 and back["flavor"]["vcpus"] == 1
    assert moved["OS-EXT-SRV-ATTR:host"] != first["OS-EXT-SRV-ATTR:host"]
    assert back["OS-EXT-SRV-ATTR:host"] == second["OS-EXT-SRV-ATTR:host"]


async def test_a_cold_migration(region: NovaRegion) -> None:
    server = await region.nova.boot()
    (before,) = await region.nova.active(server, seconds=SECONDS)
    await region.nova.cold_migrate(server)
    after = await region.nova.confirm(server)
    assert after["OS-EXT-SRV-ATTR:host"] != before["OS-EXT-SRV-ATTR:host"]


async def test_a_live_migration_to_a_host_of_nova_s_choice_and_to_a_named_one(region: NovaRegion) -> None:
    server = await region.nova.boot(networks="auto")
    await region.nova.active(server, seconds=SECONDS)
    found = await region.nova.live_migrate(server)
    target = next(name for name in region.hosts if name != found["OS-EXT-SRV-ATTR:host"])
    found = await region.nova.live_migrate(server, target)
    assert found["OS-EXT-SRV-ATTR:host"] == target


async def test_servers_of_a_dead_host_are_evacuated(region: NovaRegion) -> None:
    servers = [await region.nova.boot() for _ in range(2)]
    await region.nova.active(*servers, seconds=SECONDS)
    host = await region.nova.host(servers[0])
    await region.crash_host(host)
    found = await region.nova.evacuate(servers[0])
    assert found["OS-EXT-SRV-ATTR:host"] != host
    await region.revive_host(host)


async def test_a_server_is_shelved_and_unshelved(region: NovaRegion) -> None:
    server = await region.nova.boot()
    await region.nova.active(server, seconds=SECONDS)
    await region.nova.shelve(server)
    await check_allocations(region)
    assert not any((await region.allocations()).values())
    await region.nova.unshelve(server)


async def test_a_server_group_with_anti_affinity_spreads_over_hosts(region: NovaRegion) -> None:
    group = await region.nova.create_server_group("spread", "anti-affinity")
    hosts = set()
    for _ in region.hosts:  # in turn: without a late check, hosts of concurrent requests can be the same
        server = await region.nova.boot(hints={"group": group})
        (found,) = await region.nova.active(server, seconds=SECONDS)
        hosts.add(found["OS-EXT-SRV-ATTR:host"])
    assert hosts == set(region.hosts)
    beyond = await region.nova.boot(hints={"group": group})
    await region.nova.reaches(beyond, "ERROR", seconds=SECONDS)


async def test_a_disabled_host_gets_no_servers(region: NovaRegion) -> None:
    closed, *rest = region.hosts
    await region.nova.enable(closed, False)
    servers = [await region.nova.boot() for _ in range(8)]
    found = await region.nova.active(*servers, seconds=SECONDS)
    assert {server["OS-EXT-SRV-ATTR:host"] for server in found} <= set(rest)
    await region.nova.enable(closed)
