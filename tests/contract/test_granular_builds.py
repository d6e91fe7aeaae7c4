"""Builds with request groups: the scheduler claims the offered amounts, provider by provider."""

from collections import Counter

import pytest

from bus.messages import BuildPlaced, BuildUnplaceable, HostReported
from bus.reports import HostState, Inventory
from bus.requests import Flavor
from placement_worker import Placement
from scheduler_worker.placing.scheduler import Scheduler
from tests.support.ids import uid
from tests.support.placement_builders import a_provider, a_report
from tests.support.scheduler_builders import a_request
from tests.support.schedulers import messages_of, scheduler_of

NUMA = Flavor(
    name="numa",
    memory_mb=64,
    extra_specs={
        "resources_c:VCPU": "2",
        "resources_n:CUSTOM_VF": "1",
        "trait_n:CUSTOM_FAST": "required",
        "trait_cell:HW_NUMA_ROOT": "required",
        "same_subtree": "_cell,_c,_n",
    },
)


@pytest.fixture
async def cells(placement: Placement) -> Placement:
    """Report two hosts with two NUMA cells; each has 4 CPUs and a card with 2 VFs, fast in the first cell."""
    for host in (1, 2):
        children = []
        for cell in (10 * host + 1, 10 * host + 2):
            fast = ("CUSTOM_FAST",) if cell % 10 == 1 else ()
            cpus, ports = {"VCPU": Inventory(total=4)}, {"CUSTOM_VF": Inventory(total=2)}
            children += [
                a_provider(cell, host, inventories=cpus, traits=("HW_NUMA_ROOT",)),
                a_provider(cell + 100, cell, inventories=ports, traits=fast),
            ]
        report = a_report(host, *children, inventories={"MEMORY_MB": Inventory(total=1024)})
        assert await placement.reports.report_many([report]) == [None]
    return placement


async def a_scheduler_before(placement: Placement) -> Scheduler:
    scheduler = scheduler_of(placement)
    for host in (1, 2):
        states = (HostState(root=uid(host, "a"), host=f"host-{host}"),)
        await scheduler.handle(HostReported(cell="c1", agent=f"agent-{host}", sequence=1, hosts=states))
    return scheduler


async def test_a_batch_is_spread_over_hosts_until_they_are_full(cells: Placement) -> None:
    scheduler = await a_scheduler_before(cells)
    placed = await messages_of(scheduler, *(a_request(number, flavor=NUMA) for number in range(1, 5)))
    assert all(isinstance(answer, BuildPlaced) for answer in placed), placed
    hosts = Counter(answer.chosen.host for answer in placed if isinstance(answer, BuildPlaced))
    assert hosts == {"host-1": 2, "host-2": 2}
    (nowhere,) = await messages_of(scheduler, a_request(9, flavor=NUMA))
    assert isinstance(nowhere, BuildUnplaceable)
    assert "group _n: all of it at one provider removed 2" in nowhere.reason


async def test_a_redelivered_request_names_the_same_provider_for_each_group(cells: Placement) -> None:
    scheduler = await a_scheduler_before(cells)
    (first,) = await messages_of(scheduler, a_request(flavor=NUMA))
    (again,) = await messages_of(await a_scheduler_before(cells), a_request(flavor=NUMA))
    assert isinstance(first, BuildPlaced) and isinstance(again, BuildPlaced)
    assert again.chosen.mappings == first.chosen.mappings
    assert first.chosen.mappings.keys() == {"", "_c", "_n", "_cell"}
    assert again.chosen.choice.allocations == first.chosen.choice.allocations
