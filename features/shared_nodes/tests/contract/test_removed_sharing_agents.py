"""An operator removes an agent that shares nodes."""

from msgspec.structs import replace

from bus.messages import BuildOrdered
from features.shared_nodes.messages import LeaseAsked, NodesReported
from features.shared_nodes.ring import Ring
from tests.support.conductor_builders import CELL
from tests.support.removing_cell import ONE, RemovingCell
from tests.support.removing_cell import cell as cell


async def test_orders_for_shared_nodes_wait_for_another_agent(cell: RemovingCell) -> None:
    ring = cell.builds.sharing
    assert isinstance(ring, Ring)
    root = ONE.chosen.root
    placed = replace(ONE, chosen=replace(ONE.chosen, agent="pool"))
    lease = LeaseAsked(cell=CELL, agent="a", pool="pool", run="1")
    await ring.lend(lease)
    await ring.report_nodes(NodesReported(cell=CELL, agent="a", pool="pool", nodes=(root,)))
    (order,) = await cell.place(placed)
    assert isinstance(order, BuildOrdered) and order.agent == "a"
    assert await cell.remove("a", "pool") == []
    await ring.lend(replace(lease, agent="b"))
    await ring.lend(replace(lease, leaves=True))
    await cell.edit("a", "remove")  # only then a node with a build gets another agent
    await ring.check_leases()
    (moved,) = await ring.remind()
    assert isinstance(moved, BuildOrdered) and moved.agent == "b"
    assert await cell.assumed() == []
