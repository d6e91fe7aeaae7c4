"""A replica that reads provider trees while placement's database fails over."""

from collections.abc import Iterable

import pytest

from bus.replication import FindTrees, TreesFound
from placement_worker import BusReader
from placement_worker.core.trees import Packing, Tree
from placement_worker.memory import HistoryChanged


async def test_trees_of_another_history_raise_history_changed_itself() -> None:
    """The caller catches this error; a group with it would end the scheduler."""

    async def ask_trees(question: FindTrees) -> TreesFound:
        return Packing(1000).answer(history="new")

    async def unused(question: object) -> None:
        raise AssertionError(f"{question} was not expected")

    async def take(trees: Iterable[Tree]) -> None:
        raise AssertionError(f"{trees} are of another history")

    reader = BusReader(ask_trees, unused, unused, unused)  # type: ignore[arg-type]
    with pytest.raises(HistoryChanged, match="history new instead of old"):
        await reader.each(take, "old")
