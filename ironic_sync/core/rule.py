"""Derives the provider of a node from the node's state, by the rules of Nova's Ironic driver.

| maintenance | power_state  | provision_state   | instance_uuid | reserved |
|-------------|--------------|-------------------|---------------|----------|
| false       | neither error nor missing | available or null | null | 0        |
| false       | as above     | as above          | set           | 1, but 0 with `skip_reserve_in_use` |
| anything else              |                   |               | 1        |

A node is one root provider with one unit of one class for as long as it exists. A node without a resource
class is not reported. If placement has it, with a former class, the report has no class, so no build can
claim it. No other field counts.
"""

import re
from typing import Any

from bus.domains import Closed
from bus.ironic import NodeChanged
from bus.messages import InventoryReported
from bus.reports import Inventory, ProviderReport
from bus.vocabulary import MAX_NAME
from ironic_sync.core.node import CLEANING, DEPLOYED, DEPLOYING, FAILED, FREE, IronicNode, Place

_NAME = re.compile(r"[A-Z0-9_]{1,255}")
_STATED = (
    "name", "resource_class", "provision_state", "power_state", "maintenance", "instance_uuid", "traits",
)  # fmt: skip
_LATEST = 2**62 / 1_000_000  # seconds; what a sequence can hold


class Invalid(ValueError):
    """Error: a field of a node has an impossible value; the text names the field."""


def class_of(resource_class: str) -> str:
    """Return a node's resource class as placement writes it, such as CUSTOM_BARE_METAL for bare-metal."""
    name = "CUSTOM_" + re.sub("[^0-9A-Za-z]+", "_", resource_class).upper()
    if not _NAME.fullmatch(name) or name == "CUSTOM_":
        raise Invalid(f"resource_class: {resource_class!r} makes no name for a resource class")
    return name


def class_text(resource_class: str) -> str:
    """Return a node's resource class as a text that also says what placement calls it."""
    try:
        return f"{resource_class}, in placement {class_of(resource_class)}"
    except Invalid:
        return f"{resource_class}, which is no name for placement"


def reserved(node: IronicNode | NodeChanged, *, skip_reserve_in_use: bool = False) -> int:
    """Return the amount to reserve: 0 if an instance can be deployed on the node now, else 1. With
    `skip_reserve_in_use`, an instance on the node does not count.
    """
    usable = not node.maintenance and node.power_state not in ("error", None)
    unused = skip_reserve_in_use or node.instance_uuid is None
    return 0 if usable and unused and node.provision_state in FREE else 1


def host_name(node: IronicNode) -> str:
    """Return the name of a node's host: its name in Ironic, or its uuid if it has none or a too long one."""
    name = node.name or ""
    return name if 0 < len(name) <= MAX_NAME else node.uuid


def why_closed(node: IronicNode | NodeChanged) -> Closed:
    """Return why no instance can be deployed on a node whose amount is reserved, the lasting reason first."""
    if node.maintenance:
        return "maintenance"
    was_read = node.provision_state not in ("enroll", "verifying")  # before, Ironic knows no power state
    if node.power_state == "error" or (node.power_state is None and was_read):
        return "power"
    if node.provision_state in FAILED:
        return "failed"
    if node.provision_state in FREE | DEPLOYING | DEPLOYED:  # available nodes with an instance are reserved
        return "in use"
    return "cleaning" if node.provision_state in CLEANING else "not available"


def sequence_at(at: float) -> int:
    """Return the sequence number of a report about a node's state at time `at`: microseconds since 1970."""
    if not 0 <= at <= _LATEST:
        raise Invalid(f"at: {at!r} is no time in seconds since the epoch")
    return int(at * 1_000_000)


def report(
    node: IronicNode, place: Place, sequence: int, *, skip_reserve_in_use: bool = False, has: bool = False
) -> InventoryReported | None:
    """Return a report for placement, with a node's provider and its cell, agent and zone (`place`); None for
    a node without a resource class, unless placement `has` it: then it loses its class.
    """
    for trait in node.traits:
        if not _NAME.fullmatch(trait):
            raise Invalid(f"traits: {trait!r} is not the name of a trait")
    if node.resource_class is None and not has:
        return None
    inventories: dict[str, Inventory] = {}
    closed: Closed = "no class"
    if node.resource_class is not None:
        amount = reserved(node, skip_reserve_in_use=skip_reserve_in_use)
        inventories[class_of(node.resource_class)] = Inventory(total=1, reserved=amount, max_unit=1)
        closed = why_closed(node) if amount else ""
    provider = ProviderReport(
        id=node.uuid, name=node.uuid, inventories=inventories, traits=node.traits, aggregates=place.aggregates
    )
    return _report(node.uuid, place, sequence, host=host_name(node), providers=(provider,), closed=closed)


def deletion_report(uuid: str, place: Place, sequence: int) -> InventoryReported:
    """Return a report for placement, which states that an Ironic node was deleted."""
    return _report(uuid, place, sequence, gone=True)


def _report(uuid: str, place: Place, sequence: int, **content: Any) -> InventoryReported:
    content = {"host": uuid, "cell": place.cell, "agent": place.agent, "zone": place.zone} | content
    content["field_labels"] = place.labels
    return InventoryReported(root=uuid, sequence=sequence, **content)


def inventory_of(event: NodeChanged, *, skip_reserve_in_use: bool = False) -> InventoryReported | None:
    """Convert a NodeChanged message to a report for placement; None if the node exists without a resource
    class.
    """
    sequence = sequence_at(event.at)
    place = Place(cell=event.cell, agent=event.agent, zone=event.zone)
    if event.deleted:
        return deletion_report(event.node, place, sequence)
    node = IronicNode(uuid=event.node, **{name: getattr(event, name) for name in _STATED})
    return report(node, place, sequence, skip_reserve_in_use=skip_reserve_in_use)


def is_open(report: InventoryReported) -> bool:
    """Return whether a report shows its Ironic node as free for an instance."""
    return any(has.reserved == 0 for node in report.providers for has in node.inventories.values())
