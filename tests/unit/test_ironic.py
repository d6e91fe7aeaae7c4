"""The inventory for every state of an Ironic node, by Nova's rule."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from bus.errors import Poison
from bus.ironic import NodeChanged
from bus.messages import InventoryReported
from bus.reports import Inventory
from ironic_sync.core.rule import class_of, inventory_of, reserved, why_closed
from ironic_sync.worker import ironic_sync
from tests.support.ids import uid

FREE = NodeChanged(
    event="provision_set",
    node=uid(1, "c"),
    at=1_700_000_000.25,
    cell="cell1",
    agent="ironic1",
    resource_class="baremetal",
    provision_state="available",
)
CLOSED_STATES = [
    "enroll", "verifying", "manageable", "inspecting", "inspect wait", "inspect failed",
    "adopting", "adopt failed", "cleaning", "clean wait", "clean hold", "clean failed",
    "deploying", "wait call-back", "deploy hold", "deploy failed", "active", "deleting", "error",
    "rescuing", "rescue wait", "unrescuing", "rescue", "rescue failed", "unrescue failed",
    "servicing", "service wait", "service hold", "service failed",
    "deleted", "deploy complete", "service",
]  # fmt: skip
POWERED = ["power on", "power off", "rebooting", "soft reboot", "soft power off"]


async def sync(*nodes: NodeChanged) -> Sequence[InventoryReported | Poison | None]:
    (row,) = ironic_sync().consumes
    outcomes: Sequence[InventoryReported | Poison | None] = await row.handler(nodes)
    return outcomes


def test_an_unavailable_node_is_always_reserved() -> None:
    instances, powers = (None, uid(7, "b")), (*POWERED, "error", None)
    for state, maintenance, instance, power in product(CLOSED_STATES, (False, True), instances, powers):
        node = replace(
            FREE, provision_state=state, maintenance=maintenance, instance_uuid=instance, power_state=power
        )
        assert reserved(node) == reserved(node, skip_reserve_in_use=True) == 1, node


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"maintenance": True, "provision_state": "clean failed"}, "maintenance"),
        ({"power_state": None}, "power"),
        ({"power_state": None, "provision_state": "enroll"}, "not available"),  # no power state was read yet
        ({"power_state": "error", "provision_state": "enroll"}, "power"),
        ({"provision_state": "clean failed"}, "failed"),
        ({"provision_state": "error"}, "failed"),
        ({"provision_state": "clean wait"}, "cleaning"),
        ({"provision_state": "active"}, "in use"),
        ({"provision_state": "manageable"}, "not available"),
    ],
)
def test_the_lasting_reason_of_a_closed_node_is_named(changed: dict[str, Any], why: str) -> None:
    assert why_closed(replace(FREE, **changed)) == why


@pytest.mark.parametrize("state", ["available", None])
@pytest.mark.parametrize(
    ("maintenance", "powers", "instance", "expected", "when_skipping"),
    [
        (False, POWERED, None, 0, 0),
        (False, POWERED, uid(7, "b"), 1, 0),
        (False, ["error", None], None, 1, 1),
        (False, ["error", None], uid(7, "b"), 1, 1),
        (True, [*POWERED, "error", None], None, 1, 1),
        (True, [*POWERED, "error", None], uid(7, "b"), 1, 1),
    ],
)
def test_an_available_node_is_free_unless_in_maintenance_without_power_or_in_use(
    state: str | None,
    maintenance: bool,
    powers: Sequence[str | None],
    instance: str | None,
    expected: int,
    when_skipping: int,
) -> None:
    for power in powers:
        node = replace(
            FREE, provision_state=state, maintenance=maintenance, power_state=power, instance_uuid=instance
        )
        assert reserved(node) == expected
        assert reserved(node, skip_reserve_in_use=True) == when_skipping


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("baremetal", "CUSTOM_BAREMETAL"),
        ("baremetal-gold", "CUSTOM_BAREMETAL_GOLD"),
        ("Bare.Metal-silver 2", "CUSTOM_BARE_METAL_SILVER_2"),
        ("bare__metal", "CUSTOM_BARE_METAL"),
        ("a-_-b", "CUSTOM_A_B"),
        ("_x", "CUSTOM__X"),
        ("x-", "CUSTOM_X_"),
        ("ümlaut", "CUSTOM__MLAUT"),
        ("VCPU", "CUSTOM_VCPU"),
        ("CUSTOM_FOO", "CUSTOM_CUSTOM_FOO"),
    ],
)
def test_a_class_is_named_as_nova_names_it(name: str, expected: str) -> None:
    assert class_of(name) == expected


def test_a_node_is_one_provider_of_one_class_with_its_traits() -> None:
    sent = inventory_of(replace(FREE, traits=("CUSTOM_GOLD", "HW_CPU_X86_VMX"), zone="north"))
    assert sent is not None
    (provider,) = sent.providers
    assert (sent.root, sent.host) == (FREE.node, FREE.node)
    assert (sent.cell, sent.agent, sent.zone) == ("cell1", "ironic1", "north")
    assert (provider.id, provider.name, provider.parent) == (FREE.node, FREE.node, None)
    assert provider.inventories == {"CUSTOM_BAREMETAL": Inventory(total=1, reserved=0, max_unit=1)}
    assert provider.traits == ("CUSTOM_GOLD", "HW_CPU_X86_VMX")


@pytest.mark.parametrize(
    ("name", "host"),
    [("rack1-n7", "rack1-n7"), ("", FREE.node), ("n" * 200, "n" * 200), ("n" * 201, FREE.node)],
)
def test_the_host_of_a_node_has_the_nodes_name_in_ironic(name: str, host: str) -> None:
    sent = inventory_of(replace(FREE, name=name))
    assert sent is not None and sent.host == host
    assert sent.providers[0].name == FREE.node


def test_a_deleted_node_is_reported_as_deleted() -> None:
    sent = inventory_of(replace(FREE, deleted=True, resource_class=None))
    assert sent is not None
    assert (sent.gone, sent.providers, sent.root) == (True, (), FREE.node)


def test_a_node_without_a_resource_class_is_not_reported() -> None:
    assert inventory_of(replace(FREE, resource_class=None)) is None


@pytest.mark.parametrize(
    ("node", "field"),
    [
        (replace(FREE, resource_class=""), "resource_class"),
        (replace(FREE, resource_class="x" * 300), "resource_class"),
        (replace(FREE, traits=("CUSTOM_GOOD", "custom_bad")), "traits"),
        (replace(FREE, traits=("CUSTOM_" + "X" * 250,)), "traits"),
        (replace(FREE, at=-1.0), "at"),
        (replace(FREE, at=1e300), "at"),
    ],
)
async def test_an_event_that_cannot_be_true_is_poison_and_its_neighbours_are_not(
    node: NodeChanged, field: str
) -> None:
    bad, good = await sync(node, FREE)
    assert isinstance(bad, Poison) and str(bad).startswith(f"{field}: ")
    assert good == inventory_of(FREE)
