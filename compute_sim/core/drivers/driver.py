"""The interface of a driver: it adds its hardware to a tree."""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from compute_sim.core.provider_tree import ProviderTree, TreeMistake

InUse = Callable[[str], Mapping[str, int]]  # provider id → amounts that guests hold


class Driver(Protocol):
    @property
    def follows_use(self) -> bool:
        """Whether the driver's output depends on what guests use."""
        ...

    def update_provider_tree(self, tree: ProviderTree, in_use: InUse) -> None:
        """Add all hardware of the driver's type; drivers run one after another."""
        ...


class DriverOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A driver with the options that a machines file may set."""

    @property
    def follows_use(self) -> bool:
        return False


def unused(provider: str) -> Mapping[str, int]:
    """Report no usage."""
    return {}


def cell_named(tree: ProviderTree, number: int) -> str:
    return f"{tree.name}_numa{number}"


def beside_cell(tree: ProviderTree, number: int, device: str) -> str:
    """Return the parent of a device: its NUMA cell, or the root of a host without NUMA cells."""
    if cell_named(tree, 0) not in tree:
        return tree.name
    if cell_named(tree, number) not in tree:
        raise TreeMistake(f"{tree.name}: {device}.cell: there is no NUMA cell {number}")
    return cell_named(tree, number)
