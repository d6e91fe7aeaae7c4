"""The page of bare metal: the heading of each node, placement's state, and what prevents or should prevent a
claim.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, Literal

import pytest

from control_room.core.metal import (
    COLUMNS,
    BoardNode,
    IronicState,
    MetalNodes,
    PlacementRecord,
    board,
    completed,
    heading,
    shown,
)

NOW = 1000.0
READ = 990.0
SAID: dict[str, Any] = {"state": "available", "power": "power off", "resource_class": "baremetal"}
OPEN: dict[str, Any] = {"inventory": "free", "updated": 940.0}
CLOSED: dict[str, Any] = {"inventory": "reserved", "updated": 940.0}
USED: dict[str, Any] = {**OPEN, "used": True, "holders": ("b1",)}

# Every provision state of Ironic except available → the heading of a node that is not in maintenance.
HEADINGS = {
    "enroll": "not ready", "manageable": "not ready",
    "verifying": "at work", "inspecting": "at work", "inspect wait": "at work", "adopting": "at work",
    "cleaning": "at work", "clean wait": "at work", "clean hold": "at work", "deleting": "at work",
    "rescuing": "at work", "rescue wait": "at work", "unrescuing": "at work", "servicing": "at work",
    "service wait": "at work", "service hold": "at work",
    "deploying": "deploying", "wait call-back": "deploying", "deploy hold": "deploying",
    "active": "in use", "rescue": "in use",
    "inspect failed": "failed", "adopt failed": "failed", "clean failed": "failed", "deploy failed": "failed",
    "error": "failed", "rescue failed": "failed", "unrescue failed": "failed", "service failed": "failed",
    "deleted": "at work", "deploy complete": "at work", "service": "at work", "of a later Ironic": "at work",
}  # fmt: skip

Inventory = Literal["free", "reserved", "none"]
INVENTORIES: tuple[Inventory, ...] = ("free", "reserved", "none")
BOOLEANS = (False, True)


def records() -> Iterator[PlacementRecord | None]:
    """Yield every record that placement can have of a node, and None."""
    yield None
    for inventory, holders, marks in product(INVENTORIES, ((), ("b1",), ("b1", "b2")), ((), ("disabled",))):
        yield PlacementRecord(inventory=inventory, used=bool(holders), holders=holders, marks=marks)


def states(state: str, *, maintenance: bool = False, power: str = "power on") -> Iterator[IronicState]:
    """Yield a node in this state with every value of the fields that do not decide the heading."""
    for retired, protected, class_ in product(BOOLEANS, BOOLEANS, ("gold", "")):
        for instance in ("", "b1") if state != "available" or maintenance else ("",):
            yield IronicState(
                state=state, power=power, maintenance=maintenance, retired=retired, protected=protected,
                resource_class=class_, instance=instance,
            )  # fmt: skip


def headings(nodes: Iterator[IronicState]) -> set[str]:
    """Return the headings of nodes, each with every record of placement."""
    return {heading(node, record, is_read=True) for node, record in product(nodes, records())}


@pytest.mark.parametrize(("state", "expected"), HEADINGS.items())
def test_ironics_state_decides_the_heading_whatever_placement_has(state: str, expected: str) -> None:
    for power in ("power on", "power off", "error", ""):
        assert headings(states(state, power=power)) == {expected}


@pytest.mark.parametrize("state", ["available", *HEADINGS])
def test_a_node_in_maintenance_is_shown_so_in_every_state(state: str) -> None:
    assert headings(states(state, maintenance=True)) == {"maintenance"}


@pytest.mark.parametrize("power", ["", "error"])
def test_an_available_node_without_power_control_has_failed(power: str) -> None:
    assert headings(states("available", power=power)) == {"failed"}


@pytest.mark.parametrize(
    ("inventory", "holders", "marks", "expected"),
    [
        ("free", 0, False, "free"),
        ("free", 0, True, "closed"),
        ("reserved", 0, False, "closed"),
        ("reserved", 0, True, "closed"),
        ("none", 0, False, "closed"),
        *((inventory, holders, marks, "held")
          for inventory in INVENTORIES for holders in (1, 2) for marks in BOOLEANS),
    ],
)  # fmt: skip
def test_placement_decides_the_heading_of_an_available_node(
    inventory: Inventory, holders: int, marks: bool, expected: str
) -> None:
    consumers = ("b1", "b2")[:holders]
    record = PlacementRecord(
        inventory=inventory, used=holders > 0, holders=consumers, marks=("disabled",) if marks else ()
    )
    assert {heading(node, record, is_read=True) for node in states("available")} == {expected}


def test_an_available_node_with_an_instance_is_held_whatever_placement_has() -> None:
    for record in records():
        node = IronicState(state="available", power="power on", instance="b9")
        assert heading(node, record, is_read=True) == "held"


def test_an_available_node_that_placement_does_not_have_is_closed() -> None:
    assert {heading(node, None, is_read=True) for node in states("available")} == {"closed"}


def test_a_node_that_ironic_has_deleted_is_gone() -> None:
    assert {heading(None, record, is_read=True) for record in records()} == {"gone"}


@pytest.mark.parametrize(
    ("inventory", "is_held", "marks", "expected"),
    [
        ("free", False, False, "free"),
        ("free", False, True, "closed"),
        ("reserved", False, False, "unavailable"),
        ("reserved", False, True, "unavailable"),
        ("none", False, False, "unavailable"),
        *((inventory, True, marks, "claimed") for inventory in INVENTORIES for marks in BOOLEANS),
    ],
)
def test_without_an_answer_of_ironic_no_heading_says_more_than_placement_knows(
    inventory: Inventory, is_held: bool, marks: bool, expected: str
) -> None:
    record = PlacementRecord(inventory=inventory, used=is_held, marks=("disabled",) if marks else ())
    assert heading(None, record, is_read=False) == expected


def test_each_heading_has_a_title() -> None:
    every = {heading(None, record, is_read=is_read) for record in records() for is_read in BOOLEANS}
    every |= headings(node for state in ("available", *HEADINGS) for node in states(state))
    assert every | {"maintenance"} == {key for key, _, _ in COLUMNS}


def a_node(reply: dict[str, Any] | None, has: dict[str, Any] | None, **more: Any) -> BoardNode:
    return BoardNode(
        id="n1",
        ironic=None if reply is None else IronicState(**(SAID | reply)),
        placement_record=None if has is None else PlacementRecord(**has),
        **{"read": READ, **more},
    )


@pytest.mark.parametrize(
    ("reply", "has", "berth", "prevents"),
    [
        ({}, OPEN, "open", ()),
        ({}, CLOSED, "closed", ("placement received 60 s ago that nothing can be deployed on it",)),
        ({}, {"inventory": "none"}, "closed", ("placement has no inventory of it",)),
        ({}, None, "does not have it", ("placement does not have it",)),
        ({}, {**OPEN, "marks": ("disabled",)}, "closed, disabled", ("disabled",)),
        ({}, USED, "held", ("b1 holds it",)),
        ({"instance": "b9"}, CLOSED, "closed", ("Ironic has instance b9 on it",)),
        ({"state": "deploying", "instance": "b1"}, USED, "held",
         ("Ironic has it deploying", "Ironic has instance b1 on it")),
        ({"state": "active", "instance": "b9"}, USED, "held",
         ("Ironic has it active", "Ironic has instance b9 on it", "b1 holds it")),
        ({"state": "active", "instance": "b1"}, {**USED, "holders": ("b1", "b2")}, "held",
         ("Ironic has it active", "Ironic has instance b1 on it", "b1 and b2 hold it")),
        ({"state": "cleaning"}, CLOSED, "closed", ("Ironic has it cleaning",)),
        ({"state": "clean failed", "why": "no <disk>"}, CLOSED, "closed",
         ("Ironic has it clean failed: no <disk>",)),
        ({"power": ""}, CLOSED, "closed", ("its power state is not known",)),
        ({"power": "error"}, CLOSED, "closed", ("its power cannot be controlled",)),
        ({"state": "enroll", "power": ""}, None, "does not have it",
         ("its power state is not known", "Ironic has it enroll", "placement does not have it")),
        ({"state": "active", "maintenance": True, "why": "fan"}, CLOSED, "closed",
         ("it is in maintenance: fan", "Ironic has it active")),
        (None, CLOSED, "closed",
         ("Ironic does not have it any more",)),
    ],
)  # fmt: skip
def test_what_prevents_a_claim_is_named(
    reply: dict[str, Any] | None, has: dict[str, Any] | None, berth: str, prevents: object
) -> None:
    one = shown(a_node(reply, has), MetalNodes(at=READ), NOW)
    assert (one.berth, one.obstacles) == (berth, prevents)


@pytest.mark.parametrize(
    ("reply", "column", "reason"),
    [
        ({"resource_class": ""}, "free", "it has no resource class"),
        ({"state": "cleaning"}, "at work", "Ironic has it cleaning"),
        ({"maintenance": True}, "maintenance", "it is in maintenance"),
        ({"instance": "b9"}, "held", "Ironic has instance b9 on it"),
    ],
)
def test_a_node_that_placement_offers_in_spite_of_its_state_is_shown_so(
    reply: dict[str, Any], column: str, reason: str
) -> None:
    one = shown(a_node(reply, OPEN), MetalNodes(at=READ), NOW)
    assert (one.column, one.obstacles, one.is_offered) == (column, (reason,), True)


def test_the_state_names_marks_that_do_not_decide_the_heading() -> None:
    node = IronicState(
        **(SAID | {"state": "active", "maintenance": True}), retired=True, protected=True, target="x"
    )
    assert node.text == "active → x, power off, in maintenance, retired, protected"


@pytest.mark.parametrize(("updated", "age"), [(940.0, 60.0), (0.0, None)])
def test_an_unknown_time_is_not_shown(updated: float, age: float | None) -> None:
    one = shown(a_node({}, {"inventory": "reserved", "updated": updated}), MetalNodes(at=READ), NOW)
    assert one.age == age
    assert any("ago" in obstacle for obstacle in one.obstacles) == (age is not None)


BEFORE = MetalNodes(
    at=READ,
    reads_ironic=True,
    nodes=(
        BoardNode(
            id="n1", name="metal1", read=READ, ironic=IronicState(state="cleaning"),
            placement_record=PlacementRecord(**CLOSED), differs=("traits: ...",),
        ),
        BoardNode(id="n2", name="metal2", read=READ, ironic=IronicState(state="enroll")),
        BoardNode(id="n3", read=READ, placement_record=PlacementRecord(**CLOSED)),
        BoardNode(id="n4", name="metal4", read=READ, ironic=IronicState(**SAID)),
    ),
)  # fmt: skip


def test_while_ironic_does_not_answer_its_previous_answer_is_shown_with_its_age() -> None:
    now = MetalNodes(
        at=NOW,
        reads_ironic=True,
        ironic_problem="no route",
        nodes=(
            *(BoardNode(id=id_, placement_record=PlacementRecord(**CLOSED)) for id_ in ("n1", "n3", "n5")),
            BoardNode(id="n4", name="metal4", read=NOW, ironic=IronicState(state="active", power="power on")),
        ),
    )
    nodes = completed(now, BEFORE)
    found = {node.id: shown(node, nodes, NOW) for node in nodes.nodes}
    assert {id_: (one.column, one.ironic_age) for id_, one in found.items()} == {
        "n1": ("at work", 10.0),
        "n2": ("not ready", 10.0),
        "n3": ("gone", 10.0),
        "n4": ("in use", None),
        "n5": ("unavailable", None),
    }
    assert (found["n1"].node.name, found["n2"].node.name) == ("metal1", "metal2")
    assert nodes.oldest == READ and not any(one.node.differs for one in found.values())
    again = completed(now, nodes)
    assert again.nodes == nodes.nodes


def test_while_placement_does_not_answer_the_previous_nodes_are_shown() -> None:
    nodes = completed(MetalNodes(at=0.0, reads_ironic=True, placement_problem="no answer"), BEFORE)
    assert (nodes.nodes, nodes.at, nodes.placement_problem) == (BEFORE.nodes, READ, "no answer")
    assert [column.key for column in board(nodes, NOW)] == ["closed", "at work", "not ready", "gone"]


def test_a_complete_read_replaces_all_nodes() -> None:
    now = MetalNodes(at=NOW, reads_ironic=True)
    assert completed(now, BEFORE) is now
