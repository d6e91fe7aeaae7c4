"""What an order says of its resources, and what it may leave out.

Most builds take what their flavor's figures say, of one provider: the agent knows both without being told.
"""

from collections.abc import Mapping

from bus.messages import BuildOrdered
from bus.moves import MoveOrdered
from bus.requests import BuildSpec, Flavor
from bus.vocabulary import Allocations


def told_allocations(root: str, spec: BuildSpec, given: Allocations) -> Allocations:
    """As an order says them: nothing where its reader finds the same by itself."""
    return {} if given == {root: _figures(spec.flavor)} else given


def allocations_of(order: BuildOrdered | MoveOrdered) -> Allocations:
    """What placement has given this build there, on which providers."""
    if order.allocations:
        return order.allocations
    figures = _figures(order.spec.flavor)
    return {order.root: figures} if figures else {}


def reshaped_mappings(
    mappings: Mapping[str, tuple[str, ...]], before: Allocations, after: Allocations
) -> dict[str, tuple[str, ...]]:
    """Who serves which group once what was held of `before` is held of `after`, unit for unit.

    Who holds nothing more for it is replaced by those who hold it now; empty stays empty.
    """
    instead: dict[str, tuple[str, ...]] = {}
    for provider, resources in before.items():
        gone = [name for name in resources if name not in after.get(provider, {})]
        instead[provider] = (() if len(gone) == len(resources) else (provider,)) + tuple(
            to
            for to, there in after.items()
            if to != provider and any(name in there and name not in before.get(to, {}) for name in gone)
        )
    return {
        suffix: tuple(dict.fromkeys(to for one in providers for to in instead.get(one, (one,))))
        for suffix, providers in mappings.items()
    }


def _figures(flavor: Flavor) -> dict[str, int]:
    figures = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.disk_gb}
    return {name: amount for name, amount in figures.items() if amount}
