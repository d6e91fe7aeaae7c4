"""Compares a node in Ironic with its provider in placement."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from bus.messages import InventoryReported
from bus.reports import Inventory
from bus.resources import Provider

What = Literal[
    "missing", "gone", "not ours", "no class", "bad", "class", "reserved", "inventory", "traits",
    "aggregates", "name", "zone", "labels", "cell", "agent", "instance", "closed",
]  # fmt: skip

FEW = 3

# an operator must fix them: no sweep repairs them
WAITING: tuple[What, ...] = ("not ours", "no class", "bad")
_SETS = ("traits", "aggregates")


class NodeDifference(msgspec.Struct, frozen=True):
    """A difference of one node between Ironic and placement, with both values or a reason."""

    node: str
    what: What
    ironic: str = ""
    placement: str = ""
    name: str = ""  # the node's name in Ironic

    @property
    def stays(self) -> bool:
        """Return whether only an operator can remove the difference, because a sweep cannot repair it."""
        return self.what in WAITING or self.what == "instance"

    def __str__(self) -> str:
        called = f"{self.name} ({self.node})" if self.name else self.node
        return f"{called}: {self._sentence()}"

    def _sentence(self) -> str:
        match self.what:
            case "missing":
                return "placement does not have it"
            case "gone":
                return "Ironic does not have it any more"
            case "not ours":
                return f"placement has it, and {self.ironic}"
            case "no class":
                return "it has no resource class, so no build can claim it"
            case "bad":
                return f"placement cannot have it: {self.ironic}"
            case "instance":
                has = f"Ironic has {self.ironic} there" if self.ironic else "Ironic has no instance there"
                return f"instance: according to placement {self.placement} holds it, and {has}"
        if self.what in _SETS:
            sides = (("Ironic", self.ironic), ("placement", self.placement))
            return f"{self.what}: " + "; ".join(f"only {side} has {has}" for side, has in sides if has)
        return f"{self.what}: Ironic has {self.ironic or 'none'}, placement has {self.placement or 'none'}"


def name_of(provider: Provider) -> str:
    """Return the last known name of a node in Ironic; empty if it has none."""
    return "" if provider.host == provider.id else provider.host


def compare(
    report: InventoryReported, provider: Provider | None, name: str = ""
) -> tuple[NodeDifference, ...]:
    """Return the differences between a node's provider in placement and the report of Ironic's state; `name`
    is the node's name in Ironic.
    """
    if provider is None or provider.gone:
        return (NodeDifference(report.root, "missing", name=name),)
    between = _between(report, provider)
    return tuple(
        NodeDifference(report.root, aspect, ironic, placement, name) for aspect, ironic, placement in between
    )


def _between(report: InventoryReported, provider: Provider) -> Iterator[tuple[What, str, str]]:
    wanted = report.providers[0]
    class_, inventory = next(iter(wanted.inventories.items()), ("", None))
    stays = {class_, *provider.kept_classes}
    others = [name for name in provider.inventories if name not in stays and not _left_over(provider, name)]
    has = provider.inventories.get(class_)
    if (has is None and class_) or others:
        yield "class", class_, ", ".join(others if has is None else [class_, *others])
    if has is None or inventory is None:
        pass
    elif has.reserved != inventory.reserved and not _is_withheld(provider, class_):
        yield "reserved", str(inventory.reserved), str(has.reserved)
    elif has.reserved == inventory.reserved and has != inventory:
        yield "inventory", _written(inventory), _written(has)
    elif report.closed != provider.label_sources.closed:
        yield "closed", report.closed, provider.label_sources.closed
    if extra := _unequal(wanted.traits, provider.traits, provider.kept_traits):
        yield "traits", *extra
    if extra := _unequal(wanted.aggregates, provider.aggregates, provider.kept_aggregates):
        yield "aggregates", *extra
    if report.host != provider.host:
        yield "name", report.host, provider.host
    if report.zone != provider.zone:
        yield "zone", report.zone, provider.zone
    if report.field_labels != provider.label_sources.of_fields:
        yield "labels", _listed(report.field_labels), _listed(provider.label_sources.of_fields)
    if report.cell != provider.cell:
        yield "cell", report.cell, provider.cell
    if report.agent != provider.agent:
        yield "agent", report.agent, provider.agent


def _listed(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{level}={label}" for level, label in sorted(labels.items()))


def _left_over(provider: Provider, class_: str) -> bool:
    inventory = provider.inventories[class_]
    return inventory.reserved == inventory.total and provider.used.get(class_, 0) > 0


def _is_withheld(provider: Provider, class_: str) -> bool:
    """Return whether placement reserves a node's class because a consumer holds the node by another class."""
    return any(used for name, used in provider.used.items() if name not in (class_, *provider.kept_classes))


def _written(inventory: Inventory) -> str:
    usual = Inventory(total=inventory.total)
    fields = ((name, getattr(inventory, name)) for name in inventory.__struct_fields__)
    return ", ".join(
        f"{name} {size}" for name, size in fields if name == "total" or size != getattr(usual, name)
    )


def _unequal(
    ironic: Sequence[str], placement: Sequence[str], by_operators: Sequence[str]
) -> tuple[str, str] | None:
    """Return the values only in Ironic and only in placement, as two texts, or None if both are equal.

    Values that operators added in placement are ignored.
    """
    only_ironic = sorted({*ironic} - {*placement})
    only_placement = sorted({*placement} - {*ironic, *by_operators})
    return (", ".join(only_ironic), ", ".join(only_placement)) if only_ironic or only_placement else None


def allowance(nodes: int, share: float) -> int:
    """Return how many deleted nodes a sweep may remove: the fraction `share` of all `nodes`, at least three.

    If more are missing in Ironic, the sweep assumes a mistake and removes no node.
    """
    return max(FEW, int(share * nodes))
