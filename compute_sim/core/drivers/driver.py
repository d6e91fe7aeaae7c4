"""What a driver is: it says what is there, of a tree in which only others' contents are left."""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from compute_sim.core.provider_tree import ProviderTree, TreeMistake

InUse = Callable[[str], Mapping[str, int]]  # a provider's id → how much of what guests here hold of it


class Driver(Protocol):
    @property
    def follows_use(self) -> bool:
        """Does what it says depend on what its guests use?"""
        ...

    def update_provider_tree(self, tree: ProviderTree, in_use: InUse) -> None:
        """Add all that there is of its kind; drivers are asked one after the other."""
        ...


class DriverOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A driver with what a file of machines may say of it."""

    @property
    def follows_use(self) -> bool:
        return False


def unused(provider: str) -> Mapping[str, int]:
    """Nobody uses anything."""
    return {}


def cell_named(tree: ProviderTree, number: int) -> str:
    return f"{tree.name}_numa{number}"


def beside_cell(tree: ProviderTree, number: int, device: str) -> str:
    """The provider a device is below: its NUMA cell, or the root of a host that tells of none."""
    if cell_named(tree, 0) not in tree:
        return tree.name
    if cell_named(tree, number) not in tree:
        raise TreeMistake(f"{tree.name}: {device}.cell: there is no NUMA cell {number}")
    return cell_named(tree, number)
