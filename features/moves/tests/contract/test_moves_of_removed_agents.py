"""Moves whose agent an operator removes, on a real database."""

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from berth.kit.testing import packages
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from features.moves.messages import MoveProgress
from features.moves.tests.support.conductor_moves import a_move, a_move_report, in_short
from tests.support.removing_cell import BUILT, ONE, RemovingCell


class RemovingCellOfMoves(RemovingCell):
    async def deliver(self, *messages: Message) -> list[Message]:
        return [each for each in await super().deliver(*messages) if not isinstance(each, MoveProgress)]


@pytest.fixture
async def cell(database: Database) -> RemovingCell:
    await migrate(database, *packages("conductor"))
    return RemovingCellOfMoves(database)


def short(messages: Sequence[Message]) -> list[str]:
    """Return messages in short, without repetitions."""
    return list(dict.fromkeys(in_short(message) for message in messages))


MOVES: Mapping[str, tuple[str, str, list[str], list[str]]] = {
    "destination, in prepare": ("prepare", "agent5", ["prepare 3 at host6"], ["host5"]),
    "source, in send": ("send", "agent0", ["destroy 2 at host5 above 1", "ended error at host0"], []),
    "destination, in start": ("start", "agent5", ["destroy 1 at host0", "ended error at host5"], []),
}


@pytest.mark.parametrize(("phase", "agent", "then", "assumed"), MOVES.values(), ids=MOVES)
async def test_a_move_continues_as_with_a_silent_agent_but_does_not_wait(
    cell: RemovingCell, phase: str, agent: str, then: list[str], assumed: list[str]
) -> None:
    await cell.place(ONE)
    await cell.deliver(BUILT)
    moved = a_move(generation=1)
    assert moved.chosen is not None
    cell.books.hold(replace(ONE, chosen=moved.chosen, generation=1))
    (order,) = await cell.deliver(moved)
    while (name := getattr(order, "phase", None)) != phase:
        assert name in ("prepare", "send")
        (order,) = await cell.deliver(a_move_report(order, "done"))  # type: ignore[arg-type]
    assert short(await cell.remove(agent)) == then
    assert [host for _, _, host, _ in await cell.assumed()] == assumed
