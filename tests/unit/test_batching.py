"""Concurrent callers are served in one batch."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from placement_worker.batching import AT_ONCE, Batched


class Work:
    def __init__(self) -> None:
        self.lists: list[list[int]] = []
        self.go_on = asyncio.Event()

    async def __call__(self, numbers: Sequence[int]) -> Sequence[int]:
        self.lists.append(list(numbers))
        await self.go_on.wait()
        if 13 in numbers:
            raise ValueError("thirteen")
        return [2 * number for number in numbers]


@asynccontextmanager
async def at_work(work: Work) -> AsyncIterator[Batched[int, int]]:
    together = Batched(work)
    running = asyncio.ensure_future(together.run())
    try:
        yield together
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def calls(together: Batched[int, int], work: Work, *numbers: int) -> list[asyncio.Task[int]]:
    """Call with each in turn, until all are in work or waiting."""
    tasks = []
    for number in numbers:
        before = len(work.lists)
        tasks.append(asyncio.ensure_future(together(number)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(work.lists) >= before
    return tasks


async def test_who_comes_while_lists_are_in_work_waits_for_the_next_one() -> None:
    work = Work()
    async with at_work(work) as together:
        tasks = await calls(together, work, *range(AT_ONCE + 3))
        assert work.lists == [[number] for number in range(AT_ONCE)]
        work.go_on.set()
        assert await asyncio.gather(*tasks) == [2 * number for number in range(AT_ONCE + 3)]
        assert work.lists[AT_ONCE:] == [[AT_ONCE, AT_ONCE + 1, AT_ONCE + 2]]


async def test_what_goes_wrong_is_told_to_those_concerned_and_the_next_are_served() -> None:
    work = Work()
    async with at_work(work) as together:
        work.go_on.set()
        with pytest.raises(ValueError, match="thirteen"):
            await together(13)
        assert await together(4) == 8


async def test_a_caller_who_left_is_not_served() -> None:
    work = Work()
    async with at_work(work) as together:
        first, second, third, fourth = await calls(together, work, 1, 2, 3, 4)
        third.cancel()
        work.go_on.set()
        assert [await task for task in (first, second, fourth)] == [2, 4, 8]
        assert work.lists == [[1], [2], [4]]
