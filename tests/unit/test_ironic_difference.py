"""Differences between Ironic and placement, as values and as text."""

from typing import Any

import pytest
from msgspec.structs import replace

from bus.messages import InventoryReported
from bus.reports import Inventory
from bus.resources import Provider
from ironic_sync.core.difference import allowance, compare
from ironic_sync.core.node import IronicNode, Place
from ironic_sync.core.rule import report

UUID = "8a0ac04c-a3eb-4d7c-9ce4-5dca8ee26549"
RACK, ROW = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
NODE = IronicNode(
    uuid=UUID,
    name="n1",
    resource_class="gold",
    provision_state="available",
    power_state="power off",
    traits=("CUSTOM_A", "HW_CPU_X86_VMX"),
)
PLACE = Place(cell="c1", agent="c1-metal", zone="z1", aggregates=(RACK,))
OPEN = Inventory(total=1, reserved=0, max_unit=1)
CLOSED = Inventory(total=1, reserved=1, max_unit=1)


def sent(**node: Any) -> InventoryReported:
    reply = report(replace(NODE, **node), PLACE, 0)
    assert reply is not None
    return reply


def placed(**more: Any) -> Provider:
    same: dict[str, Any] = {
        "id": UUID,
        "name": UUID,
        "parent": None,
        "root": UUID,
        "generation": 1,
        "inventories": {"CUSTOM_GOLD": OPEN},
        "used": {"CUSTOM_GOLD": 0},
        "traits": ("HW_CPU_X86_VMX", "CUSTOM_A"),
        "aggregates": (RACK,),
        "cell": "c1",
        "agent": "c1-metal",
        "zone": "z1",
        "sequence": 5,
        "host": "n1",
    }
    return Provider(**same | more)


CASES: dict[str, tuple[Provider | None, list[tuple[str, str, str]]]] = {
    "the same": (placed(), []),
    "in use": (placed(used={"CUSTOM_GOLD": 1}), []),
    "not there": (None, [("missing", "", "")]),
    "taken away, but still held": (placed(gone=True), [("missing", "", "")]),
    "closed": (placed(inventories={"CUSTOM_GOLD": CLOSED}), [("reserved", "0", "1")]),
    "of another class": (
        placed(inventories={"CUSTOM_TIN": CLOSED}),
        [("class", "CUSTOM_GOLD", "CUSTOM_TIN")],
    ),
    "of one class too many": (
        placed(inventories={"CUSTOM_GOLD": OPEN, "CUSTOM_TIN": OPEN}),
        [("class", "CUSTOM_GOLD", "CUSTOM_GOLD, CUSTOM_TIN")],
    ),
    "of a class before, still held": (
        placed(
            inventories={"CUSTOM_GOLD": OPEN, "CUSTOM_TIN": CLOSED}, used={"CUSTOM_GOLD": 0, "CUSTOM_TIN": 1}
        ),
        [],
    ),
    "of no class": (placed(inventories={}, used={}), [("class", "CUSTOM_GOLD", "")]),
    "two of them": (
        placed(inventories={"CUSTOM_GOLD": Inventory(total=2)}),
        [("inventory", "total 1, max_unit 1", "total 2")],
    ),
    "a trait too few": (placed(traits=("HW_CPU_X86_VMX",)), [("traits", "CUSTOM_A", "")]),
    "another trait": (
        placed(traits=("HW_CPU_X86_VMX", "CUSTOM_B", "CUSTOM_C")),
        [("traits", "CUSTOM_A", "CUSTOM_B, CUSTOM_C")],
    ),
    "another aggregate": (placed(aggregates=(ROW,)), [("aggregates", RACK, ROW)]),
    "elsewhere": (
        placed(zone="", cell="c2", agent="c2-metal"),
        [("zone", "z1", ""), ("cell", "c1", "c2"), ("agent", "c1-metal", "c2-metal")],
    ),
    "renamed": (placed(host="n0"), [("name", "n1", "n0")]),
    "all at once": (
        placed(inventories={"CUSTOM_GOLD": CLOSED}, traits=(), aggregates=()),
        [("reserved", "0", "1"), ("traits", "CUSTOM_A, HW_CPU_X86_VMX", ""), ("aggregates", RACK, "")],
    ),
}


@pytest.mark.parametrize("provider, expected", CASES.values(), ids=CASES.keys())
def test_differences_between_ironic_and_placement(
    provider: Provider | None, expected: list[tuple[str, str, str]]
) -> None:
    found = compare(sent(), provider, "n1")
    assert [(difference.what, difference.ironic, difference.placement) for difference in found] == expected
    assert all(
        difference.node == UUID and difference.name == "n1" and not difference.stays for difference in found
    )


@pytest.mark.parametrize(
    "of, share, may_go",
    [(0, 0.1, 3), (10, 0.1, 3), (39, 0.1, 3), (40, 0.1, 4), (10_000, 0.1, 1000), (10, 1, 10)],
)
def test_a_few_may_always_go_and_then_a_share(of: int, share: float, may_go: int) -> None:
    assert allowance(of, share) == may_go
