"""Searches: where a scheduler searches, and what runs in parallel with a long search."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from berth.composition import candidate_source
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.local import LocalBroker, LocalTransport
from bus.queries import FindCandidates
from bus.reports import Inventory
from bus.requests import ResourceGroup
from placement_worker import Memory, Placement
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_placement,
    a_provider,
    a_report,
    an_order,
    looking_for,
    on_hosts,
)
from tests.support.placement_calls import claim, report
from tests.support.waiting import in_time

CHILDREN = 200
VFS = {"CUSTOM_VF": Inventory(total=4)}


@pytest.fixture
async def placement() -> AsyncIterator[Placement]:
    """Yield a placement with a host with many child providers, and a host without any."""
    async with a_placement("sqlite+aiosqlite://") as one:
        wide = a_report(1, *(a_provider(10 + position, 1, inventories=VFS) for position in range(CHILDREN)))
        assert await one.reports.report_many([wide, a_report(2)]) == [None, None]
        yield one


def hopeless() -> FindCandidates:
    suffixes = tuple(f"_{position}" for position in range(60))
    return FindCandidates(
        groups=tuple(ResourceGroup(suffix=suffix, resources={"CUSTOM_VF": 3}) for suffix in suffixes),
        same_subtree=(suffixes,),
        group_policy="isolate",
    )


def many() -> FindCandidates:
    groups = tuple(ResourceGroup(suffix=f"_{position}", resources={"CUSTOM_VF": 1}) for position in range(3))
    return FindCandidates(groups=groups, limit=20_000)


async def test_a_query_does_not_wait_for_four_slow_queries(placement: Placement) -> None:
    ended: list[str] = []

    async def ask(name: str, query: FindCandidates) -> None:
        await placement.find_candidates(query)
        ended.append(name)

    async with asyncio.TaskGroup() as group:
        for position in range(4):
            group.create_task(ask(f"hopeless {position}", hopeless()))
        await asyncio.sleep(0)
        group.create_task(ask("innocent", looking_for({"VCPU": 1})))
    assert ended[0] == "innocent"
    assert sorted(ended[1:]) == [f"hopeless {position}" for position in range(4)]


async def test_a_cancelled_search_holds_no_snapshot(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement_worker.worker.SLICE_SECONDS", 0.0)
    searching = asyncio.create_task(placement.searches.run(many()))
    await asyncio.sleep(0)
    assert placement.memory.index.snapshots
    searching.cancel()
    await asyncio.gather(searching, return_exceptions=True)
    assert placement.memory.index.snapshots == []
    assert (await placement.find_candidates(looking_for({"VCPU": 1}))).fitting == 2


ONE = uid(1, "a")


async def test_a_scheduler_in_the_process_of_placement_searches_its_index() -> None:
    shared = Memory()
    place = candidate_source(Bus(LocalTransport(LocalBroker())), shared)
    assert place.workers == ()
    events: list[str] = []

    def handle(roots: Sequence[str], _: Sequence[str]) -> None:
        events.extend(roots)

    place.source.watch(handle)
    with pytest.raises(Unavailable, match="has not been read"):
        place.source.hosts()
    async with a_placement("sqlite+aiosqlite://", shared=shared) as placement:
        await report(placement, a_report(1))
        await in_time(place.loaded())
        assert [host.uuid for host in place.source.hosts()] == [ONE]
        await claim(placement, an_order(a_claim(1, on_hosts(1))))
        assert place.source.seen == placement.memory.index.seen and events == [ONE, ONE]
