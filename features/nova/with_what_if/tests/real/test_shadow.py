"""Shadow mode with a real Nova and OpenStack Placement: all requests are decided and compared."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from berth.importing.bring_over import Import
from berth.importing.writers import writer_for
from berth.kit import PlacementClient, Settings
from berth.services import embedded
from bus.delivery.runner import Bus
from deploy.nova import HostCapacity, NovaOptions, NovaRegion, find_nova, running_nova
from deploy.nova_client import wait_until
from deploy.nova_configuration import API_DATABASE
from deploy.servers import find_binaries, free_port
from features.nova.tests.real.checks import SECONDS
from features.nova.with_what_if.messages import NOVA_REPORT, FindNovaReport, NovaReportFound
from tests.support.servers import installed

pytestmark = [pytest.mark.nova, pytest.mark.services, pytest.mark.asyncio(loop_scope="module")]

OPTIONS = NovaOptions(hosts=3, capacity=HostCapacity(vcpus=16, memory_mb=32768, disk_gb=200))


@dataclass
class Shadowed:
    region: NovaRegion
    bus: Bus
    placement_url: str

    async def report(self, instance: str = "") -> NovaReportFound:
        return await self.bus.asker(NOVA_REPORT, timeout=SECONDS)(FindNovaReport(instance=instance))

    async def import_placement(self) -> None:
        token = await self.region.nova.http.token()
        source, target = (
            PlacementClient(self.region.placement_url, token),
            PlacementClient(self.placement_url, "admin"),
        )
        async with source, target:
            theirs, ours = await source.world(_quietly), await target.world(_quietly)
            writer = await writer_for(target)
            outcome = await Import(theirs, ours, target, writer, _quietly).run(prune=False)
        assert outcome.failed == {}

    async def decides(self) -> None:
        """Wait until berth's scheduler has a host for a new server of Nova."""

        async def has_host() -> bool:
            server = await self.region.nova.boot()
            await self.region.nova.active(server, seconds=SECONDS)

            async def is_known() -> bool:
                return bool((await self.report(server)).listed)

            await wait_until(is_known, "shadow mode knows the server", SECONDS)
            [request] = (await self.report(server)).listed
            await self.region.nova.delete(server)  # many tries would fill Nova's hosts
            return bool(request.berth_hosts)

        await wait_until(has_host, "berth has hosts for Nova's servers", SECONDS)


def _quietly(what: str, done: int, total: int) -> None: ...


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shadowed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shadowed]:
    installed(find_binaries)
    installed(find_nova)
    directory: Path = tmp_path_factory.mktemp("berth")
    async with running_nova(OPTIONS) as region:
        address = f"127.0.0.1:{free_port()}"
        settings = Settings().having(
            state_dir=str(directory),
            simulator={"hosts": 1},
            placement_http=address,
            nova_notification_amqp_url=region.bus_urls[""],
            nova_database_url=region.database_urls[API_DATABASE],
        )
        async with embedded(settings) as house:
            found = Shadowed(region, house.bus, f"http://{address}")
            await found.import_placement()
            await found.decides()
            yield found


async def test_requests_of_a_real_nova_are_compared(shadowed: Shadowed) -> None:
    nova, before = shadowed.region.nova, await shadowed.report()
    flavor = await nova.create_flavor("larger", vcpus=2, ram=1024, disk=2)
    huge = await nova.create_flavor("huge", vcpus=17)
    servers = await asyncio.gather(*(nova.boot(f"server-{number}") for number in range(4)))
    several = await nova.boot_many(3)
    refused = await nova.boot(flavor=huge)
    await nova.active(*servers, *several, seconds=SECONDS)
    await nova.reaches(refused, "ERROR", seconds=SECONDS)
    await nova.resize(servers[0], flavor)
    await nova.confirm(servers[0])
    moved = await nova.live_migrate(servers[1])

    async def is_complete() -> bool:
        found = await shadowed.report()
        return found.requests - before.requests == 8 and not found.open

    try:
        await wait_until(is_complete, "all results are known", SECONDS / 2)
    except AssertionError as late:
        seen = [(await shadowed.report(server)).listed for server in (*servers, *several, refused)]
        raise AssertionError(f"{late}: {await shadowed.report()}, {seen}") from None
    found = await shadowed.report()
    assert (found.nova_refused, found.berth_refused, found.both_refused - before.both_refused) == (
        0,
        before.berth_refused,
        1,
    )
    assert found.undecided == before.undecided, found.undecided_reasons
    assert (
        found.nova.p50
        and found.berth.p50
        and set(map(str, shadowed.region.hosts)) >= {s.host for s in found.shares}
    )
    listed = [each for server in (*servers, *several) for each in (await shadowed.report(server)).listed]
    requests = {request.id: request for request in listed}.values()
    operations = Counter(request.operation for request in requests)
    assert operations == {"boot": 5, "resize": 1, "live migration": 1}
    assert sorted(len(request.nova_hosts) for request in requests) == [1, 1, 1, 1, 1, 1, 3]
    [migration] = [request for request in requests if request.operation == "live migration"]
    assert migration.nova_hosts == (moved["OS-EXT-SRV-ATTR:host"],)
    [too_large] = (await shadowed.report(refused)).listed
    assert too_large.berth_code == "class" and "No valid host" in too_large.nova_reason


async def test_moves_and_server_groups_of_a_real_nova_are_compared(shadowed: Shadowed) -> None:
    nova, region, before = shadowed.region.nova, shadowed.region, await shadowed.report()
    await shadowed.import_placement()
    group = await nova.create_server_group("spread", "anti-affinity")
    first = await nova.boot(hints={"group": group})
    await nova.active(first, seconds=SECONDS)
    second = await nova.boot(hints={"group": group})
    await nova.active(second, seconds=SECONDS)
    await nova.shelve(first)
    await nova.unshelve(first)
    crashed = await nova.host(second)
    await region.crash_host(crashed)
    evacuated = await nova.evacuate(second)
    await region.revive_host(crashed)

    async def is_complete() -> bool:
        found = await shadowed.report()
        return found.requests - before.requests == 4 and not found.open

    await wait_until(is_complete, "all results are known", SECONDS)
    found = {server: (await shadowed.report(server)).listed for server in (first, second)}
    assert [each.operation for each in found[first]] == ["unshelve", "boot"]
    assert [each.operation for each in found[second]] == ["evacuation", "boot"]
    assert not [each for requests in found.values() for each in requests if each.verdict == "undecided"]
    assert found[second][0].nova_hosts == (evacuated["OS-EXT-SRV-ATTR:host"],)
    assert crashed not in found[second][0].berth_hosts
    assert found[second][1].berth_hosts != found[first][1].nova_hosts, "the group keeps them apart"
