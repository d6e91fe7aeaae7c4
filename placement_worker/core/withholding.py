"""Withholds capacity when inventory in use moves within a tree, so that the tree never offers more than is
free.

A report may remove a class at one provider and add it at others: a flat host becomes a tree of NUMA cells.
The amount still allocated on the old inventory is withheld from the new one, as additional `reserved`, until
it is released.
"""

from collections.abc import Iterator
from dataclasses import replace

from bus.reports import Inventory
from placement_worker.core.trees import ProviderState, Tree


def withheld(before: Tree, after: Tree) -> Tree:
    """Return `after` with additional reserved amounts: for each class the sum of used and free amounts stays
    within the sum of the capacities.
    """
    beyond = _beyond_capacity(after)
    if not beyond:
        return after
    stood = {(provider.uuid, name): inventory for provider, name, inventory in _inventories(before)}
    providers = []
    for provider in after.providers:
        inventories, kept_back = dict(provider.inventories), {}
        for name, inventory in provider.inventories.items():
            if not beyond.get(name):
                continue
            old = stood.get((provider.uuid, name))
            opens = inventory.capacity - max(old.capacity if old else 0, provider.used.get(name, 0))
            if opens > 0:
                less = _smaller(inventory, inventory.capacity - min(opens, beyond[name]))
                # An allocation ratio may round it below the used amount: never withhold more than was added.
                beyond[name] = max(beyond[name] - min(inventory.capacity - less.capacity, opens), 0)
                inventories[name] = less
                kept_back[name] = less.reserved - inventory.reserved
        providers.append(
            replace(provider, inventories=inventories, withheld=kept_back) if kept_back else provider
        )
    return replace(after, providers=tuple(providers))


def released(tree: Tree) -> Tree:
    """Return the tree with no more withheld than is still allocated beyond capacity."""
    return withheld(tree, replace(tree, providers=tuple(map(opened, tree.providers))))


def opened(provider: ProviderState) -> ProviderState:
    """Return the provider without withheld amounts."""
    if not provider.withheld:
        return provider
    inventories = dict(provider.inventories)
    for name, amount in provider.withheld.items():
        inventories[name] = with_reserved(inventories[name], inventories[name].reserved - amount)
    return replace(provider, inventories=inventories, withheld={})


def _beyond_capacity(tree: Tree) -> dict[str, int]:
    """Return class → by how much its usage exceeds its capacity, over the whole tree."""
    beyond: dict[str, int] = {}
    for provider, name, inventory in _inventories(tree):
        excess = provider.used.get(name, 0) - inventory.capacity
        if excess > 0:
            beyond[name] = beyond.get(name, 0) + excess
    return beyond


def _inventories(tree: Tree) -> Iterator[tuple[ProviderState, str, Inventory]]:
    for provider in tree.providers:
        for name, inventory in provider.inventories.items():
            yield provider, name, inventory


def _smaller(inventory: Inventory, capacity: int) -> Inventory:
    """Return the inventory with more reserved, so that this capacity is left."""
    left = int(capacity / inventory.allocation_ratio)
    less = with_reserved(inventory, inventory.total - left)
    while less.capacity > capacity:
        less = with_reserved(inventory, less.reserved + 1)
    return less


def with_reserved(inventory: Inventory, reserved: int) -> Inventory:
    return Inventory(
        total=inventory.total,
        reserved=reserved,
        min_unit=inventory.min_unit,
        max_unit=inventory.max_unit,
        step_size=inventory.step_size,
        allocation_ratio=inventory.allocation_ratio,
    )
