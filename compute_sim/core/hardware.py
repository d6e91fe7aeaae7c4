"""Builds the provider tree of a host from its drivers."""

from collections.abc import Sequence

from bus.host_marks import DISABLED
from compute_sim.core.drivers.driver import Driver, InUse, unused
from compute_sim.core.provider_tree import ProviderTree, TreeProvider


def furnished(
    root: str,
    host: str,
    drivers: Sequence[Driver],
    stored: Sequence[TreeProvider] = (),
    in_use: InUse = unused,
    *,
    disabled: bool = False,
) -> ProviderTree:
    """Return the tree that the drivers report now, together with content added by operators."""
    tree = ProviderTree(root, host, stored)
    for driver in drivers:
        driver.update_provider_tree(tree, in_use)
    if disabled:
        tree.mark(host, DISABLED)
    return tree
