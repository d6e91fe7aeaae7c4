"""Sweeps bring placement in line with Ironic, by all nodes or by recent changes."""

from typing import Any

import pytest

from ironic_sync.comparison import diff
from ironic_sync.core.selection import NodeSelection
from tests.support.fake_ironic import FakeIronic, node_number
from tests.support.swept_ironic import SweptIronic

# Everything


async def test_all_of_ironic_comes_to_placement() -> None:
    async with SweptIronic() as world:
        world.ironic.have(1, traits=["CUSTOM_A"], properties={"rack": "r1", "az": "z1"})
        world.ironic.have(2, provision_state="active", instance_uuid=node_number(99))
        world.ironic.have(3, resource_class="Bare Metal")
        await world.sweep.round()
        assert await world.differences() == []
        assert world.placed.open() == {1, 3}
        (tree,) = [tree for tree in world.placed.trees.values() if tree.root == node_number(1)]
        assert (tree.cell, tree.agent, tree.zone) == ("c1", "c1-metal", "z1")
        assert tree.providers[0].traits == ("CUSTOM_A",) and len(tree.providers[0].aggregates) == 1


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
        for number in range(5):
            world.ironic.have(number, properties={"rack": "r1"})
        await world.sweep.round()
        world.told.clear()
        world.ironic.change(3, **change)
        assert len(await world.differences()) >= 1
        await world.sweep.round()
        assert await world.differences() == []
        assert world.told_of() == {3}


async def test_a_sweep_does_not_report_unchanged_nodes() -> None:
    async with SweptIronic(full_every=1) as world:
        for number in range(5):
            world.ironic.have(number)
        await world.sweep.round()
        world.told.clear()
        await world.sweep.round()
        assert world.told == []


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
        for number in range(4):
            world.ironic.have(number, owner="me")
        await world.sweep.round()
        world.told.clear()
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
        assert world.told == [] and node_number(7) not in world.placed.trees


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
        ]  # the third reads everything
        assert world.told_of() >= {7, 1000, 1001, 1002}


async def test_changes_committed_late_are_not_missed() -> None:
    async with SweptIronic(full_every=99) as world:
        for number in range(1, 4):
            world.ironic.have(number)
        world.ironic.change(1)
        await world.sweep.round()
        world.ironic.now -= 2
        world.ironic.change(2, maintenance=True)  # dated before what was seen already
        await world.sweep.round()
        assert await world.differences() == []


async def test_when_too_much_changed_everything_is_read() -> None:
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
        assert len(ironic.requests) == before  # it is left to the next that is whole
        await world.sweep.round()
        assert await world.differences() == []


@pytest.mark.parametrize("nulls_first", [False, True])
async def test_nodes_without_updates_need_no_order(nulls_first: bool) -> None:
    ironic = FakeIronic(nulls_first=nulls_first)
    async with SweptIronic(ironic=ironic, full_every=99) as world:
        for number in range(150):
            ironic.have(number)
        await world.sweep.round()
        ironic.have(777)
        await world.sweep.round()
        assert 777 in world.placed.open()
        ironic.change(7, maintenance=True)
        await world.sweep.round()
        assert 7 not in world.placed.open()
