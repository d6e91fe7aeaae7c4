"""Instances on nodes that agents share do not move."""

from features.moves.tests.support.moving_cell import ONE, MovingCell, short
from features.moves.tests.support.moving_cell import cell as cell
from features.shared_nodes.messages import LeaseAsked, NodesReported
from features.shared_nodes.ring import Ring
from tests.support.conductor_builders import CELL


async def test_an_instance_on_a_node_that_agents_share_does_not_move(cell: MovingCell) -> None:
    ring = cell.builds.sharing
    assert isinstance(ring, Ring)
    await ring.lend(LeaseAsked(cell=CELL, agent="a", pool="p", run="1"))
    await ring.report_nodes(NodesReported(cell=CELL, agent="a", pool="p", nodes=(ONE.chosen.root,)))
    assert short(await cell.came_of(cell.claimed())) == ["ended error at host0"]
    assert cell.books.held == {ONE.build: (3, ONE.chosen.choice.allocations)}
