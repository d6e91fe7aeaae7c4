"""Coroutines that run in parallel, of which some fail."""

import asyncio

import pytest

from scheduler_worker.dependencies import together
from tests.support.virtual_time import in_virtual_time


@in_virtual_time
async def test_an_error_leaves_the_calling_task_without_a_cancellation_request() -> None:
    ended = []

    async def end(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        ended.append(name)
        if name == "fails":
            raise ValueError(name)

    with pytest.raises(ValueError, match="fails"):
        await together([end("late", 0.2), end("fails", 0.1), end("early", 0.0)])
    assert ended == ["early", "fails", "late"]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await asyncio.sleep(3600.0)
