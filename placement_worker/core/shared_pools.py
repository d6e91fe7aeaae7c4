"""A move between two hosts that use the same pool (such as shared storage): the amount of the pool that both
hosts need is counted once. While the move is in progress the instance holds this amount, and the holder
consumer of the source host holds only what the source needs in addition. If the move is undone, the instance
keeps the amount.
"""

from collections.abc import Collection

from bus.amounts import common, without
from bus.vocabulary import Allocations


def shared_by(source: Allocations, destination: Allocations, sharing: Collection[str]) -> Allocations:
    """Return the amounts of sharing providers that both the source and the destination of a move need."""
    shared = common(source, destination)
    return {provider: amounts for provider, amounts in shared.items() if provider in sharing}


def kept_on_return(
    former: Allocations, taken_over: Allocations, source: Allocations, sharing: Collection[str]
) -> Allocations:
    """Return the amounts at sharing providers that an instance keeps when its move is undone.

    `former`: its allocations during the move; `source`: the allocations that it needs on the source host;
    `taken_over`: the allocations that it gets back from the holder consumer. The result is the part of
    `former` that `source` needs in addition to `taken_over`.
    """
    return shared_by(former, without(source, taken_over), sharing)
