"""Data shared by readers: one read for all, repeated when it is old or has changed."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bus.cells import CellsFound, FindCells
from control_room import queries, shared_data
from control_room.queries import Reply
from control_room.shared_data import Changes, SharedData, background_tasks
from tests.support.waiting import until


def a_clock(now: list[float]) -> Any:
    return SimpleNamespace(monotonic=lambda: now[0])


@pytest.mark.parametrize(("took", "counted"), [(0.0, 10), (0.1, 10), (0.4, 4), (1.0, 2)])
async def test_placement_counts_less_often_if_counting_takes_longer(
    monkeypatch: pytest.MonkeyPatch, took: float, counted: int
) -> None:
    questions: list[Any] = []

    async def answers(source: str, ask: Any, question: Any) -> Reply[Any]:
        questions.append(question)
        if isinstance(question, FindCells):
            now[0] += took if question.counted else 0.0
            return Reply(source, CellsFound(seen=1, cells=(), hosts={"c1": 3} if question.counted else {}))
        return Reply(source)

    monkeypatch.setattr(queries, "query", answers)
    now = [0.0]
    ask: Any = SimpleNamespace(cells=None, waiting=None, instances=None, health=None)
    async with background_tasks(a_clock(now)) as tasks:
        reader = queries.StatusReader(ask, tasks, ["c2"])
        for number in range(10):
            now[0] = number * (queries.STATUS_SECONDS + 1.0)
            status = await reader.status()
            assert status.counts is not None
            assert status.counts.hosts == {"c1": 3}
            assert reader.cell_names(status) == ["c1", "c2"]
    found = [question.counted for question in questions if isinstance(question, FindCells)]
    assert (found.count(False), found.count(True)) == (10, counted)


class Source:
    def __init__(self) -> None:
        self.reads = 0
        self.ended = 0
        self.go = asyncio.Event()

    async def read(self, key: str) -> int:
        self.reads += 1
        number = self.reads
        try:
            await self.go.wait()
        finally:
            self.ended += 1
        if key == "broken":
            raise ValueError(key)
        return number


async def test_readers_share_a_read_unless_it_has_missed_a_change() -> None:
    source, changes = Source(), Changes()
    async with background_tasks(a_clock([0.0])) as tasks, asyncio.TaskGroup() as group:
        data = SharedData(tasks, source.read, changes=changes, seconds=1.0)
        before = [group.create_task(data.get("a")) for _ in range(2)]
        await until(lambda: source.reads == 1)
        changes.notify()
        after = group.create_task(data.get("a"))
        await asyncio.sleep(0)
        source.go.set()
        assert [await task for task in before] == [1, 1]
        assert await after == 2
        assert await data.get("a") == 2
        data.forget()
        assert await data.get("a") == 3


async def test_a_read_ends_after_its_last_reader_and_a_background_read_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_data, "GRACE", 0.01)
    source = Source()
    async with background_tasks(a_clock([0.0])) as tasks:
        data = SharedData(tasks, source.read, seconds=1.0)
        for refresh in (False, True):
            if refresh:
                assert data.refresh("a") is not None
                assert data.refresh("a") is None
            reader = asyncio.create_task(data.get("a"))
            await until(lambda: source.reads == 1 + refresh)  # noqa: B023
            reader.cancel()
            await asyncio.wait([reader])
            await asyncio.sleep(0.05)
            assert source.ended == 1
        source.go.set()
        assert await data.get("a") == 2


async def test_all_readers_get_the_error_of_a_read_and_the_next_reader_reads_again() -> None:
    source = Source()
    source.go.set()
    async with background_tasks(a_clock([0.0])) as tasks:
        data = SharedData(tasks, source.read, seconds=1.0)
        for reads in (1, 2):
            found = await asyncio.gather(*(data.get("broken") for _ in range(2)), return_exceptions=True)
            assert [str(error) for error in found] == ["broken", "broken"]
            assert source.reads == reads
        assert data.known("broken") is None
