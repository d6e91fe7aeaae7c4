"""An exchange of two instances is undone only if its first move is done and its second cannot happen."""

import pytest

from features.planning.core.exchanges import ExchangeAct, MoveResult, next_act


@pytest.mark.parametrize(
    ("first", "second", "undo", "act", "if_overdue"),
    [
        ("unknown", "unknown", "unknown", "wait", "fence first"),
        ("in progress", "unknown", "unknown", "wait", "wait"),
        ("failed", "unknown", "unknown", "forget", "forget"),
        ("done", "unknown", "unknown", "wait", "fence second"),
        ("done", "in progress", "unknown", "wait", "wait"),
        ("done", "done", "unknown", "forget", "forget"),
        ("done", "failed", "unknown", "undo", "undo"),
        ("done", "failed", "in progress", "wait", "wait"),
        ("done", "failed", "done", "forget", "forget"),
        ("done", "failed", "failed", "forget", "forget"),
    ],
)
def test_the_next_act_follows_from_the_results_of_the_moves(
    first: MoveResult, second: MoveResult, undo: MoveResult, act: ExchangeAct, if_overdue: ExchangeAct
) -> None:
    assert next_act(first, second, undo, overdue=False) == act
    assert next_act(first, second, undo, overdue=True) == if_overdue
