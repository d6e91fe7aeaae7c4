"""Builds with request groups: the scheduler claims the offered amounts, provider by provider."""

from collections import Counter

import pytest

from bus.messages import BuildPlaced, BuildUnplaceable, HostReported
from bus.reports import HostState, Inventory
from bus.requests import Flavor
from placement_worker import Placement
from scheduler_worker.placing import Scheduler
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_provider, a_report, an_order
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


async def test_granular_candidates_are_claimed_provider_by_provider(cells: Placement) -> None:
    scheduler = await a_scheduler_before(cells)
    (placed,) = await messages_of(scheduler, a_request(flavor=NUMA))
    assert isinstance(placed, BuildPlaced)
    host = int(placed.chosen.host.removeprefix("host-"))
    assert placed.chosen.choice.allocations == {
        uid(host, "a"): {"MEMORY_MB": 64},
        uid(10 * host + 1, "a"): {"VCPU": 2},
        uid(10 * host + 101, "a"): {"CUSTOM_VF": 1},
    }
    assert placed.chosen.choice.shapes.keys() == placed.chosen.choice.allocations.keys()
    (spare,) = placed.alternates
    assert spare.root != placed.chosen.root
    used = {uuid: sum(row.used.values()) for uuid, row in cells.memory.index.rows.items()}
    assert {uuid: used[uuid] for uuid in placed.chosen.choice.allocations} == {
        uuid: sum(asked.values()) for uuid, asked in placed.chosen.choice.allocations.items()
    }


async def test_a_batch_is_spread_over_hosts_until_they_are_full(cells: Placement) -> None:
    scheduler = await a_scheduler_before(cells)
    placed = await messages_of(scheduler, *(a_request(number, flavor=NUMA) for number in range(1, 5)))
    assert all(isinstance(answer, BuildPlaced) for answer in placed), placed
    hosts = Counter(answer.chosen.host for answer in placed if isinstance(answer, BuildPlaced))
    assert hosts == {"host-1": 2, "host-2": 2}
    (nowhere,) = await messages_of(scheduler, a_request(9, flavor=NUMA))
    assert isinstance(nowhere, BuildUnplaceable)
    assert "group _n: all of it at one provider removed 2" in nowhere.reason


@pytest.fixture
async def four(placement: Placement) -> Placement:
    """Report one host with four NUMA cells of 4 CPUs each."""
    cpus = {"VCPU": Inventory(total=4)}
    children = [a_provider(cell, 1, inventories=cpus) for cell in (11, 12, 13, 14)]
    report = a_report(1, *children, inventories={"MEMORY_MB": Inventory(total=1024)})
    assert await placement.reports.report_many([report]) == [None]
    return placement


ONE_CELL = {"resources_a:VCPU": "4"}
TWO_CELLS = {"resources_a:VCPU": "4", "resources_b:VCPU": "4", "group_policy": "isolate"}


async def test_allocations_late_in_the_search_are_found(placement: Placement) -> None:
    cpus = {"VCPU": Inventory(total=4)}
    cells = [a_provider(cell, 1, inventories=cpus) for cell in range(11, 23)]
    report = a_report(1, *cells, inventories={"MEMORY_MB": Inventory(total=1024)})
    assert await placement.reports.report_many([report]) == [None]
    scheduler = await a_scheduler_before(placement)
    flavor = Flavor(name="f", extra_specs=TWO_CELLS)
    placed = await messages_of(scheduler, a_request(flavor=flavor, instances=6))
    assert len({cell for answer in placed for cell in answer.chosen.choice.allocations}) == 12  # type: ignore[union-attr]


async def test_every_cell_of_the_best_host_is_tried_before_the_next_host(url: str, four: Placement) -> None:
    """The scheduler's index is outdated: another process has filled three cells of the best host."""
    other = a_report(2, a_provider(21, 2, inventories={"VCPU": Inventory(total=4)}))
    assert await four.reports.report_many([other]) == [None]
    scheduler = await a_scheduler_before(four)
    flavor = Flavor(name="f", extra_specs=ONE_CELL)
    full = [a_claim(number, {uid(cell, "a"): {"VCPU": 4}}) for number, cell in ((1, 11), (2, 12), (3, 13))]
    async with a_placement(url) as elsewhere:
        await elsewhere.claims.claim_many([an_order(*full)])
    assert [four.memory.index.rows[uid(cell, "a")].free["VCPU"] for cell in (11, 12, 13)] == [4, 4, 4]
    (placed,) = await messages_of(scheduler, a_request(flavor=flavor))
    assert isinstance(placed, BuildPlaced)
    assert placed.chosen.choice.allocations == {uid(14, "a"): {"VCPU": 4}}
    await four.memory.fresh()
