"""The acts on moves."""

from bus.acts import BY_NAME, Target, act_of, describe
from features.moves.messages import MoveRequested
from tests.support.ids import uid


def test_a_move_out_of_its_cell_has_no_cell() -> None:
    asked = MoveRequested(move=uid(4), build=uid(2), kind="live", cell="c1", to_cell="c2")
    assert (act_of(asked), describe(asked)) == (BY_NAME["move"], Target(uid(2)))
