"""Moves as the control room shows them."""

import pytest
from msgspec.structs import replace

from features.moves.core.shown import merged_moves, move_shown
from features.moves.messages import MoveStands
from tests.support.ids import uid

MOVE = MoveStands(
    move=uid(1), build=uid(2), kind="migrate", cell="c1", phase="send", source="h1", host="h2", since=100.0
)


@pytest.mark.parametrize(
    ("facts", "says", "state", "may"),
    [
        ({}, "copying to h2", "", ("abort",)),
        ({"kind": "live"}, "copying to h2", "", ("abort", "force")),
        ({"kind": "live", "phase": "start"}, "starting on h2", "", ("abort",)),
        ({"phase": "prepare", "host": ""}, "preparing on its host", "", ("abort",)),
        ({"phase": "resume"}, "resuming on h1", "", ("abort",)),
        ({"phase": "verify"}, "runs on h2, waits for confirmation", "warn", ("confirm", "revert")),
        ({"phase": "swap"}, "failed on h2: trying the next host", "", ("abort",)),
        ({"phase": "undo"}, "returning to its source", "", ()),
        ({"phase": "abort"}, "returning to its source", "", ()),
        ({"phase": "something {new}"}, "something", "", ("abort",)),
        ({"in_cell": "c2"}, "continues in cell c2", "", ()),
        ({"phase": "done", "ended": 130.0}, "done", "good", ()),
        ({"phase": "error", "ended": 130.0}, "not done", "bad", ()),
        ({"phase": "reverted", "ended": 130.0}, "returned", "warn", ()),
    ],
)
def test_the_state_and_operations_of_a_move(
    facts: dict[str, object], says: str, state: str, may: tuple[str, ...]
) -> None:
    shown = move_shown(replace(MOVE, **facts))
    assert shown.says.startswith(says)
    assert (shown.state, shown.may, shown.took) == (state, may, 30.0 if "ended" in facts else None)


def test_a_move_of_two_cells_is_taken_from_the_cell_that_runs_it() -> None:
    left = replace(MOVE, cell="c1", in_cell="c2", since=1.0)
    here = replace(MOVE, cell="c2", since=2.0)
    other = replace(MOVE, move=uid(9), since=3.0)
    assert merged_moves([left, other, here]) == [other, here]
    assert merged_moves([left]) == [left]
