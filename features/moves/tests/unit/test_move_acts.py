"""The act of a move in the table of acts."""

from bus.acts import Target, act_of, describe
from features.moves.messages import MoveRequested
from tests.support.ids import uid


def test_a_move_out_of_its_cell_has_no_cell_as_its_target() -> None:
    asked = MoveRequested(move=uid(4), build=uid(2), kind="live", cell="c1", to_cell="c2")
    found = act_of(asked)
    assert (found and found.name, describe(asked)) == ("move", Target(uid(2)))
