"""What an order says of its resources, and what it may leave out.

Most builds take what their flavor's figures say, of one provider: the agent knows both without being told.
"""

from bus.messages import BuildOrdered
from bus.vocabulary import Allocations, BuildSpec, Flavor


def told_allocations(root: str, spec: BuildSpec, given: Allocations) -> Allocations:
    """As an order says them: nothing where its reader finds the same by itself."""
    return {} if given == {root: _figures(spec.flavor)} else given


def allocations_of(order: BuildOrdered) -> Allocations:
    """What placement has given this build, on which providers."""
    if order.allocations:
        return order.allocations
    figures = _figures(order.spec.flavor)
    return {order.root: figures} if figures else {}


def _figures(flavor: Flavor) -> dict[str, int]:
    figures = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.disk_gb}
    return {name: amount for name, amount in figures.items() if amount}
