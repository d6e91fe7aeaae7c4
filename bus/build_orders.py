"""Fields that an order to an agent leaves out because the agent can derive them.

Most builds take the amounts of their flavor from one provider, the root; such allocations are not sent.
"""

from collections.abc import Mapping

from bus.messages import BuildOrdered
from bus.moves import MoveOrdered
from bus.requests import BuildSpec, Flavor
from bus.vocabulary import Allocations


def sent_allocations(root: str, spec: BuildSpec, given: Allocations) -> Allocations:
    """Return the allocations to send in an order: empty if they equal the flavor's amounts on the root."""
    return {} if given == {root: _figures(spec.flavor)} else given


def allocations_of(order: BuildOrdered | MoveOrdered) -> Allocations:
    """Return the allocations of a build on a host by provider, derived from its flavor if the order has
    none.
    """
    if order.allocations:
        return order.allocations
    figures = _figures(order.spec.flavor)
    return {order.root: figures} if figures else {}


def reshaped_mappings(
    mappings: Mapping[str, tuple[str, ...]], before: Allocations, after: Allocations
) -> dict[str, tuple[str, ...]]:
    """Return the providers of each request group after allocations moved from `before` to `after`.

    A provider that lost all its allocations is replaced by those that received them. A group without
    providers stays without.
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
