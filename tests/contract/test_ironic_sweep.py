"""Sweeps bring placement in line with Ironic, by all nodes or by recent changes.

A sweep never removes too many nodes, and does not hold up other work.
"""

from typing import Any

import pytest

from bus.messages import InventoryReported
from bus.reports import Inventory, ProviderReport
from ironic_sync.comparison import diff
from ironic_sync.core.selection import NodeSelection
from tests.support.fake_ironic import FakeIronic, node_number
from tests.support.swept_ironic import SweptIronic


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
        assert [node.uuid for sent in world.sent for node in sent] == [node_number(1)]
        assert node_number(7) not in world.placed.trees


async def test_a_node_that_lost_its_class_cannot_be_claimed() -> None:
    async with SweptIronic(full_every=1) as world:
        await world.swept(2)
        world.ironic.change(1, resource_class=None)
        world.ironic.have(3, resource_class=None)  # placement never had it
        await world.sweep.round()
        assert world.placed.open() == {0}
        assert node_number(3) not in world.placed.trees
        assert world.placed.trees[node_number(1)].labels.closed == "no class"
        assert [difference.what for difference in (await diff(world.survey)).differences] == ["no class"] * 2
        world.ironic.change(1, resource_class="baremetal")
        await world.sweep.round()
        assert world.placed.open() == {0, 1}


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


# Deleted nodes


@pytest.mark.parametrize("nodes, gone, share, removed", [(100, 10, 0.1, 10), (100, 11, 0.1, 0)])
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
