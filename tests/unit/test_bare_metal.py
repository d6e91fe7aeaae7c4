"""The definition of a bare-metal node."""

from typing import Any

import pytest

from bus.reports import Inventory
from bus.resources import Provider, is_node
from tests.support.ids import uid

GOLD, TIN = ({name: Inventory(total=1)} for name in ("CUSTOM_GOLD", "CUSTOM_TIN"))


def a_provider(**changed: Any) -> Provider:
    of_node = {"id": uid(1), "root": uid(1), "name": uid(1), "parent": None, "inventories": GOLD}
    return Provider(**of_node | {"generation": 0} | changed)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"inventories": GOLD | TIN},  # its class changed while an instance is on it
        {"inventories": GOLD | {"DISK_GB": Inventory(total=9)}, "kept_classes": ("DISK_GB",)},
    ],
    ids=["reported", "with its former class", "with a class of operators"],
)
def test_a_root_with_single_units_of_custom_classes_is_a_bare_metal_node(changed: dict[str, Any]) -> None:
    assert is_node(a_provider(**changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "host-1"},
        {"root": uid(2), "parent": uid(2)},
        {"inventories": {"CUSTOM_GOLD": Inventory(total=2)}},
        {"inventories": GOLD | {"VCPU": Inventory(total=1)}},
    ],
    ids=["with a name", "below a root", "with two units", "with processors"],
)
def test_other_providers_are_no_bare_metal_nodes(changed: dict[str, Any]) -> None:
    assert not is_node(a_provider(**changed))
