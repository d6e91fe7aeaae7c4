"""Hears of Ironic nodes and tells placement, which knows by the sequence which of two events counts."""

from collections.abc import Sequence

from bus.messages import InventoryReported, NodeChanged
from bus.protocol import Poison
from bus.topics import INVENTORY_REPORTED, IRONIC_NODE
from bus.worker import Worker, on_many
from ironic_sync.core import Invalid, inventory_of


def ironic_sync(*, skip_reserve_in_use: bool = False) -> Worker:
    """With `skip_reserve_in_use` an available node with an instance stays unreserved, as Nova can be told."""

    def told(node: NodeChanged) -> InventoryReported | Poison | None:
        try:
            return inventory_of(node, skip_reserve_in_use=skip_reserve_in_use)
        except Invalid as problem:
            return Poison(str(problem))

    async def sync(nodes: Sequence[NodeChanged]) -> Sequence[InventoryReported | Poison | None]:
        return [told(node) for node in nodes]

    return Worker("ironic_sync", consumes=[on_many(IRONIC_NODE, sync, emits=[INVENTORY_REPORTED])])
