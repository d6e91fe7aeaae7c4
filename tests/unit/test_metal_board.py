"""The board of bare metal: where a node is on it, what berth believes of it, what keeps it from a claim."""

from typing import Any

import pytest

from control_room.core.metal import BoardNode, IronicState, PlacementRecord, shown

NOW = 1000.0
SAID: dict[str, Any] = {"state": "available", "power": "power off", "resource_class": "baremetal"}
OPEN: dict[str, Any] = {"closed": False, "updated": 940.0}
CLOSED: dict[str, Any] = {"closed": True, "updated": 940.0}
USED: dict[str, Any] = {"closed": False, "updated": 940.0, "used": True, "holder": "b1"}


def a_node(reply: dict[str, Any] | None, has: dict[str, Any] | None, **more: object) -> BoardNode:
    return BoardNode(
        id="n1",
        ironic=None if reply is None else IronicState(**(SAID | reply)),
        placement_record=None if has is None else PlacementRecord(**has),
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("reply", "has", "column", "berth", "keeps"),
    [
        ({}, OPEN, "free", "open", ()),
        ({}, CLOSED, "closed", "closed", ("placement received 60 s ago that nothing can be deployed on it",)),
        ({}, None, "closed", "does not have it", ("placement does not have it",)),
        ({}, {**OPEN, "marks": ("disabled",)}, "closed", "closed, disabled", ("disabled",)),
        ({}, USED, "held", "held", ("b1 holds it",)),
        ({"instance": "b9"}, OPEN, "closed", "open", ("Ironic has instance b9 on it",)),
        ({"resource_class": ""}, OPEN, "closed", "open", ("it has no resource class",)),
        ({"state": "deploying", "instance": "b1"}, USED, "deploying", "held",
         ("Ironic has it deploying", "Ironic has instance b1 on it")),
        ({"state": "active", "instance": "b9"}, USED, "in use", "held",
         ("Ironic has it active", "Ironic has instance b9 on it", "b1 holds it")),
        ({"state": "cleaning"}, CLOSED, "at work", "closed", ("Ironic has it cleaning",)),
        ({"state": "clean failed", "why": "no <disk>"}, CLOSED, "failed", "closed",
         ("Ironic has it clean failed: no <disk>",)),
        ({"power": ""}, CLOSED, "failed", "closed", ("its power state is not known",)),
        ({"power": "error"}, CLOSED, "failed", "closed", ("its power cannot be controlled",)),
        ({"state": "enroll", "power": ""}, None, "not ready", "does not have it",
         ("its power state is not known", "Ironic has it enroll", "placement does not have it")),
        ({"state": "active", "maintenance": True, "why": "fan"}, CLOSED, "maintenance", "closed",
         ("it is in maintenance: fan", "Ironic has it active")),
        (None, CLOSED, "gone", "closed", ("Ironic does not have it any more",)),
    ],
)  # fmt: skip
def test_the_column_and_obstacles_of_a_node(
    reply: dict[str, Any] | None, has: dict[str, Any] | None, column: str, berth: str, keeps: object
) -> None:
    one = shown(a_node(reply, has), True, NOW)
    assert (one.column, one.berth, one.obstacles) == (column, berth, keeps)
    assert one.age == (60.0 if has else None)
