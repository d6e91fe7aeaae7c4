"""Repeated queries of the control room, less often if they are expensive."""

from types import SimpleNamespace
from typing import Any

import pytest

from bus.cells import CellsFound, FindCells
from control_room import looking
from control_room.queries import Reply


@pytest.mark.parametrize(("took", "counted"), [(0.0, 10), (0.1, 10), (0.4, 4), (1.0, 2)])
async def test_the_longer_placement_counts_the_more_seldom_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, took: float, counted: int
) -> None:
    asked: list[Any] = []

    async def answers(who: str, ask: Any, question: Any) -> Reply[Any]:
        asked.append(question)
        if isinstance(question, FindCells):
            now[0] += took if question.counted else 0.0
            return Reply(who, CellsFound(seen=1, cells=(), hosts={"c1": 3} if question.counted else {}))
        return Reply(who)

    monkeypatch.setattr(looking, "heard", answers)
    now = [0.0]
    clock: Any = SimpleNamespace(monotonic=lambda: now[0])
    questions: Any = SimpleNamespace(cells=None, waiting=None, instances=None, health=None)
    room = looking.Looking(questions, clock, ["c2"])
    for index in range(10):
        now[0] = index * (looking.SECONDS + 1.0)
        seen = await room.seen()
        assert seen.counts is not None
        assert seen.counts.hosts == {"c1": 3}
        assert room.cell_names(seen) == ["c1", "c2"]
    found = [one.counted for one in asked if isinstance(one, FindCells)]
    assert (found.count(False), found.count(True)) == (10, counted)
