"""Sweeps bring placement in line with Ironic, by all nodes or by recent changes.

A sweep never removes too many nodes, and does not hold up other work.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from bus.messages import InventoryReported
from bus.reports import Inventory, ProviderReport
from ironic_sync import sweep
from ironic_sync.comparison import diff
from ironic_sync.core.selection import NodeSelection
from tests.support.fake_ironic import FakeIronic, node_number
from tests.support.swept_ironic import SweptIronic

CHANGES: dict[str, dict[str, Any]] = {
    "closed": {"maintenance": True},
    "another class": {"resource_class": "tin"},
    "a trait": {"traits": ["CUSTOM_B"]},
    "another rack": {"properties": {"rack": "r2"}},
    "another zone": {"properties": {"az": "z2"}},
}


@pytest.mark.parametrize("full", [True, False], ids=["by reading everything", "by what changed"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_a_sweep_finds_changes_without_notifications(change: dict[str, Any], full: bool) -> None:
    async with SweptIronic(full_every=1 if full else 99) as world:
        await world.swept(5, properties={"rack": "r1"})
        world.sent.clear()
        world.ironic.change(3, **change)
        assert len(await world.differences()) >= 1
        await world.sweep.round()
        assert await world.differences() == []
        assert world.reported() == {3}


async def test_a_sweep_does_not_report_unchanged_nodes() -> None:
    async with SweptIronic(full_every=1) as world:
        await world.swept(5)
        world.sent.clear()
        await world.sweep.round()
        assert world.sent == []


async def test_a_class_that_is_still_held_under_its_old_name_is_no_difference() -> None:
    async with SweptIronic(full_every=1) as world:
        world.ironic.have(1)
        await world.sweep.round()
        world.placed.hold(1)
        world.ironic.change(1, resource_class="tin")
        await world.sweep.round()
        assert await world.differences() == []


async def test_differences_that_need_an_operator_are_listed() -> None:
    async with SweptIronic(NodeSelection(cell="c1", owners=("me", "us")), full_every=1) as world:
        await world.swept(4, owner="me")
        world.sent.clear()
        world.ironic.change(0, owner="you")
        world.ironic.change(1, resource_class=None)
        world.ironic.change(2, resource_class="x" * 300)
        world.ironic.have(7, owner="you")
        await world.sweep.round()
        found = (await diff(world.survey)).differences
        assert [(difference.what, difference.node, difference.stays) for difference in found] == [
            ("bad", node_number(2), True),
            ("no class", node_number(1), True),
            ("not ours", node_number(0), True),
        ]
        assert world.sent == [] and node_number(7) not in world.placed.trees


async def test_partial_sweeps_read_only_changed_nodes() -> None:
    async with SweptIronic(full_every=3) as world:
        for number in range(1000):
            world.ironic.have(number)
        world.ironic.change(5)
        await world.sweep.round()
        pages = []
        for _ in range(3):
            before = len(world.ironic.requests)
            world.ironic.change(7, maintenance=not world.ironic.nodes[node_number(7)]["maintenance"])
            world.ironic.have(len(world.ironic.nodes))  # a new one
            await world.sweep.round()
            pages.append(
                [request.url.params.get("sort_key", "") for request in world.ironic.requests[before:]]
            )
            assert await world.differences() == []
        read_changed = ["updated_at", "created_at"]
        assert pages == [
            read_changed,
            read_changed,
            [*read_changed, "", "", ""],
        ]  # the third round reads all nodes
        assert world.reported() >= {7, 1000, 1001, 1002}


async def test_changes_committed_late_are_not_missed() -> None:
    async with SweptIronic(full_every=99) as world:
        for number in range(1, 4):
            world.ironic.have(number)
        world.ironic.change(1)
        await world.sweep.round()
        world.ironic.now -= 2
        world.ironic.change(2, maintenance=True)  # with a date before the newest known date
        await world.sweep.round()
        assert await world.differences() == []


async def test_if_too_many_nodes_changed_all_nodes_are_read() -> None:
    async with SweptIronic(full_every=99) as world:
        for number in range(1300):
            world.ironic.have(number)
        world.ironic.change(7)
        await world.sweep.round()
        for number in range(1300):
            world.ironic.change(number, maintenance=True)
        before = len(world.ironic.requests)
        await world.sweep.round()
        assert any("sort_key" not in request.url.params for request in world.ironic.requests[before:])
        assert world.placed.open() == set() and await world.differences() == []


@pytest.mark.parametrize("never_updated", [1, 150])
async def test_an_ironic_whose_database_cannot_sort_by_time_is_read_whole(never_updated: int) -> None:
    ironic = FakeIronic(nulls_first=True)
    async with SweptIronic(ironic=ironic, full_every=2) as world:
        for number in range(never_updated + 1):
            ironic.have(number)
        ironic.change(0)
        await world.sweep.round()
        ironic.change(0, maintenance=True)
        before = len(ironic.requests)
        await world.sweep.round()
        assert len(ironic.requests) == before  # a later round, which reads all nodes, finds the change
        await world.sweep.round()
        assert await world.differences() == []


@pytest.mark.parametrize("nulls_first", [False, True])
async def test_changes_are_found_wherever_ironic_lists_nodes_without_updates(nulls_first: bool) -> None:
    ironic = FakeIronic(nulls_first=nulls_first)
    async with SweptIronic(ironic=ironic, full_every=99) as world:
        await world.swept(150)
        ironic.have(777)
        await world.sweep.round()
        assert 777 in world.placed.open()
        ironic.change(7, maintenance=True)
        await world.sweep.round()
        assert 7 not in world.placed.open()


async def test_a_large_sweep_does_not_hold_up_events() -> None:
    async with SweptIronic(full_every=1) as world:
        for number in range(1000):
            world.ironic.have(number)
        turns = 0

        async def events() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(events())
        await world.sweep.round()
        other.cancel()
        assert turns > 1000 / 50 and len(world.placed.open()) == 1000


# Deleted nodes


async def test_a_deleted_node_in_use_stays_closed() -> None:
    async with SweptIronic(full_every=1) as world:
        world.ironic.have(1)
        world.ironic.have(2)
        await world.sweep.round()
        world.placed.hold(1)
        del world.ironic.nodes[node_number(1)]
        await world.sweep.round()
        assert world.placed.open() == {2} and node_number(1) in world.placed.trees
        world.sent.clear()
        await world.sweep.round()
        assert world.sent == [] and await world.differences() == []
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
        await world.swept(nodes)
        for number in range(gone):
            del world.ironic.nodes[node_number(number)]
        world.ironic.change(nodes - 1, traits=["CUSTOM_A"]) if gone < nodes else None
        await world.sweep.round()
        assert len(world.placed.open()) == nodes - removed
        assert ("berth ironic sweep --allow-removals" in caplog.text) == (removed < gone)
        assert await world.differences() == ["gone"] * (gone - removed)  # all other differences are repaired


async def test_a_refused_removal_does_not_read_every_missing_node() -> None:
    async with SweptIronic(full_every=1) as world:
        await world.swept(500)
        world.ironic.nodes.clear()
        before = len(world.ironic.requests)
        await world.sweep.round()
        assert len(world.ironic.requests) - before < 80


async def test_hosts_of_the_same_agent_that_are_no_nodes_are_not_removed() -> None:

    async with SweptIronic(full_every=1) as world:
        world.ironic.have(1)
        root = node_number(55)
        host = ProviderReport(id=root, name="host-55", inventories={"VCPU": Inventory(total=8)})
        owner: dict[str, Any] = {"root": root, "host": "host-55", "cell": "c1", "agent": "c1-metal"}
        world.placed.report(InventoryReported(**owner, sequence=1, providers=(host,)))
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


@pytest.mark.parametrize("took, least, most", [(0.0, 0.2, 0.3), (0.1, 0.1, 0.2), (0.5, 0.0, 0.0)])
async def test_the_rate_of_pages_is_limited(
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
