"""A host without child providers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bus.reports import Inventory
from compute_sim.core.drivers.driver import InUse
from compute_sim.core.provider_tree import ProviderTree


@dataclass(frozen=True)
class FlatDriver:
    """The given inventory, traits and aggregates of the root."""

    inventory: Mapping[str, Inventory] = field(default_factory=dict)
    traits: tuple[str, ...] = ()
    aggregates: tuple[str, ...] = ()
    follows_use: bool = False

    def update_provider_tree(self, tree: ProviderTree, in_use: InUse) -> None:
        tree.give(tree.name, **self.inventory)
        tree.mark(tree.name, *self.traits)
        tree.gather(tree.name, *self.aggregates)
