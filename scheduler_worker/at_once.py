"""Several questions asked at once."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def together(asks: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All of these at once; the first failure as itself."""
    if len(asks) <= 1:
        return [await ask for ask in asks]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask) for ask in asks]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
