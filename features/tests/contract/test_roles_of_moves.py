"""Moves by clients whose role is limited to a cell."""

import pytest

from bus.claims import holder_consumer
from bus.errors import OperationRefused
from bus.vocabulary import Message
from bus.worker import Worker, on
from features.clients.tests.support.relayed_region import a_client
from features.moves.messages import MOVE_REQUESTED, MoveRequested, MoveSteered
from tests.support.ids import uid
from tests.support.waiting import until


class Mover:
    """A worker that stores requests for moves."""

    def __init__(self) -> None:
        self.moved: list[MoveRequested] = []

    async def move(self, asked: MoveRequested) -> None:
        self.moved.append(asked)

    def worker(self) -> Worker:
        return Worker("mover", consumes=[on(MOVE_REQUESTED, self.move)])


IN_C1 = {
    "of the other cell's instance": MoveRequested(move=uid(5), build=uid(2), kind="shelve", cell="c1"),
    "of an unknown instance": MoveRequested(move=uid(5), build=uid(3), kind="shelve", cell="c1"),
    "to the other cell": MoveRequested(move=uid(5), build=uid(1), kind="migrate", to_cell="c2"),
    "from another host": MoveRequested(move=uid(5), build=uid(1), kind="shelve", source="h2"),
    "by the id of the other cell's instance": MoveRequested(move=uid(2), build=uid(1), kind="shelve"),
    "by the id of what a move will leave": MoveRequested(
        move=holder_consumer(uid(2), 1), build=uid(1), kind="shelve"
    ),
    "a steering of a move that its cell has not recorded": MoveSteered(
        move=uid(5), build=uid(1), cell="c1", to="abort"
    ),
}


@pytest.mark.parametrize("order", IN_C1.values(), ids=IN_C1.keys())
async def test_a_move_by_a_limited_role_is_judged_on_the_real_cell(order: Message) -> None:
    mover = Mover()
    async with a_client("operator", mover.worker(), cells=("c1",)) as (bus, region):
        with pytest.raises(OperationRefused, match=r"in the cells c1 only|use (new|random) uuids"):
            await bus.publish(order)
        await until(lambda: [record.outcome for record in region.records] == ["denied"])
    assert not mover.moved


async def test_a_move_by_a_limited_role_is_bound_to_the_host_on_which_it_was_judged() -> None:
    mover = Mover()
    order = MoveRequested(move=uid(5), build=uid(1), kind="shelve", cell="c2")
    async with a_client("operator", mover.worker(), cells=("c1",)) as (bus, _):
        await bus.publish(order)
        await until(lambda: mover.moved)
    assert [(move.cell, move.source) for move in mover.moved] == [("c1", uid(9))]
