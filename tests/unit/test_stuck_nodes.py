"""Stuck nodes of Ironic, since when and why, from what placement has recorded."""

import pytest

from bus.domains import Closed, HostLabels
from bus.reports import Inventory
from bus.resources import Provider
from bus.stuck_nodes import AFTER, reported_at, stuck_nodes
from tests.support.ids import uid

NOW = 1_800_000_000.0


def a_node(closed: Closed, since: float, *, used: int = 0, gone: bool = False) -> Provider:
    return Provider(
        id=uid(1), name=uid(1), root=uid(1), parent=None, generation=1, host="metal-1", cell="c1", gone=gone,
        inventories={"CUSTOM_GOLD": Inventory(total=1, reserved=int(bool(closed)))},
        used={"CUSTOM_GOLD": used}, sequence=int(since * 1_000_000), label_sources=HostLabels(closed=closed),
    )  # fmt: skip


@pytest.mark.parametrize(("closed", "after"), AFTER.items())
def test_a_node_is_stuck_if_it_stays_closed_for_longer_than_its_reason_takes(
    closed: Closed, after: float
) -> None:
    assert stuck_nodes([a_node(closed, NOW - after)], NOW) == []
    [stuck] = stuck_nodes([a_node(closed, NOW - after - 1)], NOW)
    assert (stuck.node, stuck.name, stuck.cell, stuck.reason) == (uid(1), "metal-1", "c1", closed)
    assert stuck.since == NOW - after - 1


@pytest.mark.parametrize("closed", ["", "not available"])
def test_a_free_node_and_one_that_operators_keep_away_are_not_stuck(closed: Closed) -> None:
    assert stuck_nodes([a_node(closed, 2e9 - NOW)], NOW) == []


def test_an_instance_in_ironic_is_stuck_only_if_no_consumer_holds_its_node() -> None:
    assert stuck_nodes([a_node("in use", NOW - 1e6, used=1)], NOW) == []
    [stuck] = stuck_nodes([a_node("in use", NOW - 1e6)], NOW)
    assert stuck.why == "Ironic has an instance on it, and no consumer in placement holds it"


def test_the_longest_stuck_node_is_first_and_a_deleted_node_is_none() -> None:
    nodes = [a_node("failed", NOW - age) for age in (1000, 3000, 2000)]
    ages = [NOW - stuck.since for stuck in stuck_nodes([*nodes, a_node("failed", 2e9 - NOW, gone=True)], NOW)]
    assert ages == [3000, 2000, 1000]


@pytest.mark.parametrize(("sequence", "at"), [(-1, 0.0), (0, 0.0), (1_000_001, 0.0), (17 * 10**14, 1.7e9)])
def test_a_sequence_that_is_no_time_has_none(sequence: int, at: float) -> None:
    assert reported_at(sequence) == at
