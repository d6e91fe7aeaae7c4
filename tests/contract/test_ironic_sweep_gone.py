"""Sweeps never remove too many nodes, and read many nodes without blocking other work."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import httpx
import pytest

from bus.messages import InventoryReported
from bus.reports import Inventory, ProviderReport
from ironic_sync import sweep
from ironic_sync.comparison import Comparison, diff
from ironic_sync.core.selection import NodeSelection
from ironic_sync.sweep import Sweep
from tests.support.fake_ironic import node_number
from tests.support.swept_ironic import SweptIronic


async def test_a_deleted_node_is_removed() -> None:
    async with SweptIronic(full_every=1) as world:
        for number in range(5):
            world.ironic.have(number)
        await world.sweep.round()
        del world.ironic.nodes[node_number(3)]
        assert await world.differences() == ["gone"]
        await world.sweep.round()
        assert world.placed.open() == {0, 1, 2, 4} and await world.differences() == []


async def test_a_deleted_node_in_use_stays_closed() -> None:
    async with SweptIronic(full_every=1) as world:
        world.ironic.have(1)
        world.ironic.have(2)
        await world.sweep.round()
        world.placed.hold(1)
        del world.ironic.nodes[node_number(1)]
        await world.sweep.round()
        assert world.placed.open() == {2} and node_number(1) in world.placed.trees
        world.told.clear()
        await world.sweep.round()
        assert world.told == [] and await world.differences() == []
        world.ironic.have(1)
        await world.sweep.round()
        assert world.placed.open() == {1, 2}


@pytest.mark.parametrize(
    "nodes, gone, share, removed",
    [(100, 10, 0.1, 10), (100, 11, 0.1, 0), (5, 3, 0.1, 3), (5, 4, 0.1, 0), (5, 5, 1.0, 5), (200, 0, 0.1, 0)],
)
async def test_many_deleted_nodes_at_once_are_not_removed(
    nodes: int, gone: int, share: float, removed: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with SweptIronic(full_every=1, share=share) as world:
        for number in range(nodes):
            world.ironic.have(number)
        await world.sweep.round()
        for number in range(gone):
            del world.ironic.nodes[node_number(number)]
        world.ironic.change(nodes - 1, traits=["CUSTOM_A"]) if gone < nodes else None
        await world.sweep.round()
        assert len(world.placed.open()) == nodes - removed
        assert ("berth ironic sweep --allow-removals" in caplog.text) == (removed < gone)
        assert await world.differences() == ["gone"] * (gone - removed)  # all else is repaired, and this seen


async def test_until_it_is_allowed() -> None:
    async with SweptIronic(full_every=1) as world:
        for number in range(20):
            world.ironic.have(number)
        await world.sweep.round()
        world.ironic.nodes.clear()
        await world.sweep.round()
        assert len(world.placed.open()) == 20
        allowed = Sweep(world.survey, world.tell, world.clock, pages_per_second=1e9, allow_removals=True)
        await allowed.everything()
        assert world.placed.open() == set() and await world.differences() == []


async def test_a_guard_that_stops_does_not_read_every_missing_node_first() -> None:
    async with SweptIronic(full_every=1) as world:
        for number in range(500):
            world.ironic.have(number)
        await world.sweep.round()
        world.ironic.nodes.clear()
        before = len(world.ironic.requests)
        await world.sweep.round()
        assert len(world.ironic.requests) - before < 80


async def test_hosts_of_the_same_agent_that_are_no_nodes_are_never_taken_away() -> None:

    async with SweptIronic(full_every=1) as world:
        world.ironic.have(1)
        root = node_number(55)
        host = ProviderReport(id=root, name="host-55", inventories={"VCPU": Inventory(total=8)})
        world.placed.report(
            InventoryReported(
                root=root, host="host-55", cell="c1", agent="c1-metal", sequence=1, providers=(host,)
            )
        )
        await world.sweep.round()
        assert world.placed.trees[root].providers and await world.differences() == []


async def test_a_node_assigned_to_another_cell_moves_there() -> None:
    selection = NodeSelection(cell_by="properties.site", cells={"w": "west", "e": "east"})
    async with SweptIronic(selection, full_every=1) as world:
        world.ironic.have(1, properties={"site": "w"})
        await world.sweep.round()
        world.ironic.change(1, properties={"site": "e"})
        await world.sweep.round()
        tree = world.placed.trees[node_number(1)]
        assert (tree.cell, tree.agent) == ("east", "east-metal") and await world.differences() == []


# Many


@pytest.mark.slow
async def test_ten_thousand_nodes_in_pages_without_holding_up_events() -> None:
    async with SweptIronic(full_every=1) as world:
        for number in range(10_000):
            world.ironic.have(number)
        turns = [0]

        async def events() -> None:
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(events())
        await world.sweep.round()
        other.cancel()
        assert turns[0] > 10_000 / 50
        assert len(world.placed.open()) == 10_000
        world.told.clear()
        for number in range(0, 10_000, 100):
            world.ironic.change(number, maintenance=True)
        await world.sweep.round()
        assert len(world.told_of()) == 100 and len(world.placed.open()) == 9_900
        assert all(len(question.ids) <= 200 and question.limit <= 200 for question in world.placed.questions)


@pytest.mark.parametrize("took, least, most", [(0.0, 0.2, 0.3), (0.1, 0.1, 0.2), (0.5, 0.0, 0.0)])
async def test_pages_come_no_faster_than_they_may(
    took: float, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    now = [0.0]
    real: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        await real(0)

    async with SweptIronic(page=10, pages_per_second=4) as world:
        for number in range(95):
            world.ironic.have(number)
        listing = world.ironic._list

        def slow(params: dict[str, str], fields: list[str] | None) -> httpx.Response:
            now[0] += took
            return listing(params, fields)

        world.ironic._list = slow  # type: ignore[method-assign]
        monkeypatch.setattr(sweep, "monotonic", lambda: now[0])
        monkeypatch.setattr(sweep, "asyncio", SimpleNamespace(sleep=sleep))
        await world.sweep.round()
    assert len(waited) == 10 and all(least - 1e-9 <= seconds <= most + 1e-9 for seconds in waited)
    assert len(set(waited)) > 1 or most == 0


async def test_the_comparison_counts_both_sides() -> None:
    async with SweptIronic() as world:
        for number in range(3):
            world.ironic.have(number)
        await world.sweep.round()
        world.ironic.have(4)
        compared = await diff(world.survey)
        assert isinstance(compared, Comparison)
        assert (compared.nodes, compared.placed, len(compared.differences)) == (4, 3, 1)
