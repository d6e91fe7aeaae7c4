"""An Ironic node's state → what placement should know of it. The rule is Nova's own."""

import re

from msgspec.structs import replace

from bus.messages import InventoryReported, NodeChanged
from bus.vocabulary import Inventory, ProviderReport

_CLASS_NAME = re.compile(r"[A-Z0-9_]{1,255}")
_TRAIT_NAME = re.compile(r"[A-Z0-9_]{1,255}")
_LATEST = 2**62 / 1_000_000  # seconds; what a sequence can hold


class Invalid(ValueError):
    """The event cannot be true; the text names the field."""


def class_of(resource_class: str) -> str:
    """CUSTOM_BARE_METAL for bare-metal. Two names may become one class."""
    name = "CUSTOM_" + re.sub("[^0-9A-Za-z]+", "_", resource_class).upper()
    if not _CLASS_NAME.fullmatch(name) or name == "CUSTOM_":
        raise Invalid(f"resource_class: {resource_class!r} makes no name for a resource class")
    return name


def reserved(node: NodeChanged, *, skip_reserve_in_use: bool = False) -> int:
    """0 when an instance could be deployed on the node now, 1 when not."""
    free = (
        not node.maintenance
        and node.power_state not in ("error", None)
        and node.provision_state in ("available", None)  # None: what available was called before Kilo
        and (skip_reserve_in_use or node.instance_uuid is None)
    )
    return 0 if free else 1


def inventory_of(node: NodeChanged, *, skip_reserve_in_use: bool = False) -> InventoryReported | None:
    """The node's one provider; None when the event says nothing about it, and what is known should stay."""
    if not 0 <= node.at <= _LATEST:
        raise Invalid(f"at: {node.at!r} is no time in seconds since the epoch")
    report = InventoryReported(
        root=node.node,
        host=node.node,
        cell=node.cell,
        agent=node.agent,
        zone=node.zone,
        sequence=int(node.at * 1_000_000),
        gone=node.deleted,
    )
    if node.deleted:
        return report
    for trait in node.traits:
        if not _TRAIT_NAME.fullmatch(trait):
            raise Invalid(f"traits: {trait!r} is not the name of a trait")
    if node.resource_class is None:
        return None
    only_one = Inventory(
        total=1, reserved=reserved(node, skip_reserve_in_use=skip_reserve_in_use), max_unit=1
    )
    provider = ProviderReport(
        id=node.node,
        name=node.node,
        inventories={class_of(node.resource_class): only_one},
        traits=node.traits,
    )
    return replace(report, providers=(provider,))
