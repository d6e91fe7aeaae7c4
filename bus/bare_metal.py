"""Recognizes bare-metal nodes, and allocations of whole nodes, by their resource classes."""

from collections.abc import Iterable, Mapping

from bus.reports import Inventory
from bus.resources import Provider
from bus.vocabulary import Allocations, Id

PROCESSORS = frozenset({"VCPU", "PCPU"})  # the resource classes of processors for guests


def is_node(provider: Provider) -> bool:
    """Return whether a provider is a bare-metal node: a root provider with its id as its name, and with
    single units of custom resource classes. Classes that operators added do not count (part `owner`).
    """
    reported = provider.inventories.keys() - provider.kept_classes
    is_named_by_id = provider.id == provider.root == provider.name
    return is_named_by_id and _are_single_units(reported, provider.inventories)


def is_bare_metal(held: Allocations, root: Id, inventories: Mapping[str, Inventory]) -> bool:
    """Return whether allocations are of a bare-metal node as a whole: their only resource is the root
    provider's one unit of a custom resource class, and the root provider has no processors for guests.
    """
    resources = held.get(root, {})
    is_one = len(held) == len(resources) == 1 and PROCESSORS.isdisjoint(inventories)
    return is_one and _are_single_units(resources, inventories)


def _are_single_units(classes: Iterable[str], inventories: Mapping[str, Inventory]) -> bool:
    return all(
        name.startswith("CUSTOM_") and name in inventories and inventories[name].total == 1
        for name in classes
    )
