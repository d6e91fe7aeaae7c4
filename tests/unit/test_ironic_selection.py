"""Selection of Ironic's nodes, and their cells, zones and aggregates."""

from typing import Any

import pytest

from ironic_sync.core.node import IronicNode
from ironic_sync.core.selection import NodeSelection, aggregate

UUID = "8a0ac04c-a3eb-4d7c-9ce4-5dca8ee26549"


def a_read_node(**more: Any) -> IronicNode:
    return IronicNode(uuid=UUID, **dict[str, Any](resource_class="gold", whole=True) | more)


def choosing(**more: Any) -> NodeSelection:
    return NodeSelection(**{"cell": "c1"} | more)


OURS = {
    "everything, unless told otherwise": ({}, {}, ""),
    "its conductor group": ({"conductor_groups": ("rack1", "rack2")}, {"conductor_group": "rack2"}, ""),
    "however its group is written": ({"conductor_groups": ("Rack2",)}, {"conductor_group": "rack2"}, ""),
    "another group": (
        {"conductor_groups": ("rack1",)},
        {"conductor_group": "rack3"},
        "its conductor group, rack3, is not among ours",
    ),
    "the default group": ({"conductor_groups": ("-",)}, {"conductor_group": ""}, ""),
    "its shard": ({"shards": ("a", "b")}, {"shard": "b"}, ""),
    "no shard": ({"shards": ("a",)}, {}, "its shard, none, is not among ours"),
    "its owner": ({"owners": ("me",)}, {"owner": "me"}, ""),
    "another owner": ({"owners": ("me",)}, {"owner": "you"}, "its owner, you, is not among ours"),
    "its class": ({"resource_classes": ("gold",)}, {}, ""),
    "all filters at once": (
        {"owners": ("me",), "shards": ("a",)},
        {"owner": "me", "shard": "b"},
        "its shard, b, is not among ours",
    ),
    "a cell for its group": (
        {"cell": "", "cell_by": "conductor_group", "cells": {"g": "c2"}},
        {"conductor_group": "g"},
        "",
    ),
    "no cell for its group": (
        {"cell": "", "cell_by": "conductor_group", "cells": {"g": "c2"}},
        {"conductor_group": "h"},
        "no cell is named for its conductor_group, h",
    ),
}


@pytest.mark.parametrize("chosen, node, why_not", OURS.values(), ids=OURS.keys())
def test_the_cell_of_a_node_follows_the_selection(
    chosen: dict[str, Any], node: dict[str, Any], why_not: str
) -> None:
    selection = choosing(**chosen)
    assert selection.reason_not_selected(a_read_node(**node)) == why_not
    assert (selection.place(a_read_node(**node)) is None) == bool(why_not)


CELLS = {"west": "c1", "EAST": "c2", "-": "c3"}
PLACES = {
    "by its group": ("conductor_group", {"conductor_group": "east"}, "c2"),
    "by a property": ("properties.site", {"properties": {"site": "west"}}, "c1"),
    "by something extra": ("extra.site", {"extra": {"site": "west"}}, "c1"),
    "by a number": ("properties.site", {"properties": {"site": 7}}, "c9"),
    "without the property": ("properties.site", {}, "c3"),
    "of another value": ("properties.site", {"properties": {"site": "north"}}, "c9"),
    "by its shard": ("shard", {"shard": "west"}, "c1"),
}


@pytest.mark.parametrize("key, node, cell", PLACES.values(), ids=PLACES.keys())
def test_the_cell_of_a_node(key: str, node: dict[str, Any], cell: str) -> None:
    place = NodeSelection(cell="c9", cell_by=key, cells=CELLS).place(a_read_node(**node))
    assert place is not None and (place.cell, place.agent) == (cell, f"{cell}-metal")


ZONES = {
    "none": ({}, {}, ""),
    "the same for all": ({"zone": "z1"}, {}, "z1"),
    "by a property": ({"zone_by": "properties.az", "zone": "z1"}, {"properties": {"az": "z2"}}, "z2"),
    "by a property it has not": ({"zone_by": "properties.az", "zone": "z1"}, {}, "z1"),
    "by a property that is no name": (
        {"zone_by": "properties.az", "zone": "z1"},
        {"properties": {"az": {"z": 2}}},
        "z1",
    ),
    "by one that is too long": ({"zone_by": "extra.az"}, {"extra": {"az": "z" * 256}}, ""),
    "by one that cannot be stored": ({"zone_by": "extra.az"}, {"extra": {"az": "z\0"}}, ""),
    "by its group": ({"zone_by": "conductor_group"}, {"conductor_group": "g"}, "g"),
}


@pytest.mark.parametrize("chosen, node, zone", ZONES.values(), ids=ZONES.keys())
def test_the_zone_of_a_node(chosen: dict[str, Any], node: dict[str, Any], zone: str) -> None:
    place = choosing(**chosen).place(a_read_node(**node))
    assert place is not None and place.zone == zone


RACKED = {"properties": {"rack": "R1"}, "conductor_group": "g"}
AGGREGATES = {
    "none": ((), RACKED, []),
    "by rack": (("properties.rack",), RACKED, [("properties.rack", "R1")]),
    "by group": (("conductor_group",), RACKED, [("conductor_group", "g")]),
    "by both": (
        ("conductor_group", "properties.rack"),
        RACKED,
        [("conductor_group", "g"), ("properties.rack", "R1")],
    ),
    "by zone": (("zone",), RACKED, [("zone", "z1")]),
    "the default group is no group": (("conductor_group",), {}, []),
    "without a rack": (("properties.rack",), {"properties": {"rack": None}}, []),
}


@pytest.mark.parametrize("by, node, expected", AGGREGATES.values(), ids=AGGREGATES.keys())
def test_the_aggregates_of_a_node(
    by: tuple[str, ...], node: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    place = choosing(aggregates_by=by, zone="z1").place(a_read_node(**node))
    assert place is not None
    assert set(place.aggregates) == {aggregate(*one) for one in expected}


def test_an_aggregate_id_is_derived_from_field_and_value() -> None:
    assert aggregate("properties.rack", "R1") == "2c427cdc-6cf3-5592-809b-3f54c92e72d1"
    assert aggregate("properties.rack", "R1") != aggregate("extra.rack", "R1")


def test_the_selection_is_filtered_by_ironic_where_possible() -> None:
    assert choosing().filters() == {}
    one = choosing(conductor_groups=("-",), owners=("me",), resource_classes=("gold",), shards=("a", "b"))
    exact = {"conductor_group": "", "owner": "me", "resource_class": "gold"}
    assert one.filters() == {**exact, "shard": ("a", "b")}
    assert choosing(conductor_groups=("a", "b"), owners=("me", "you")).filters() == {}


def test_large_fields_are_only_asked_for_when_they_are_used() -> None:
    assert {"properties", "extra"}.isdisjoint(choosing().fields())
    assert "properties" in choosing(aggregates_by=("properties.rack",)).fields()
    assert "extra" in choosing(zone_by="extra.az").fields()
    assert "extra" in choosing(labels_by={"rack": "extra.rack"}).fields()
    assert {"uuid", "provision_state", "traits", "conductor_group"} <= set(choosing().fields())


def test_a_selection_by_shard_requires_reads() -> None:
    assert not choosing(owners=("me",)).only_reads_place
    assert choosing(shards=("a",)).only_reads_place
    assert NodeSelection(cell_by="shard", cells={"a": "c1"}).only_reads_place


BAD = {
    "a key that is none": ({"zone_by": "rack"}, "'rack' is not a field to select nodes by"),
    "a property without a name": ({"aggregates_by": ("properties.",)}, "properties."),
    "a mapping without a key": ({"cells": {"a": "c1"}}, "cell_by"),
    "a key without a mapping": ({"cell_by": "owner"}, "cell_by"),
    "no cell at all": ({"cell": ""}, "no cell"),
    "a level that every host has": (
        {"labels_by": {"zone": "properties.az"}},
        "'zone' is no level for labels",
    ),
    "a label by a key that is none": ({"labels_by": {"rack": "rack"}}, "'rack' is not a field"),
}


@pytest.mark.parametrize("chosen, says", BAD.values(), ids=BAD.keys())
def test_an_invalid_selection_is_refused(chosen: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        choosing(**chosen)
