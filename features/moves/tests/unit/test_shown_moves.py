"""Moves and drains as the control room shows them."""

import pytest
from msgspec.structs import replace

from features.moves.core.shown import left_host, merged_moves, move_shown
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


def test_moves_away_are_counted_for_a_day_until_a_guest_arrived() -> None:
    def over(number: int, source: str, host: str, ended: float, phase: str = "done") -> MoveStands:
        return replace(MOVE, move=uid(number), source=source, host=host, phase=phase, ended=ended)

    now = 200_000.0
    away = [over(1, "h1", "h2", now - 5), over(2, "h1", "h3", now - 9)]
    assert left_host("h1", away, now) == 2
    assert left_host("h1", [over(3, "h1", "h2", now - 1, "error"), MOVE, *away], now) == 2
    assert left_host("h1", [away[0], over(4, "h7", "h1", now - 7), away[1]], now) == 1
    assert left_host("h1", [*away, over(5, "h1", "h2", now - 90_000)], now) == 2
