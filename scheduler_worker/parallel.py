"""Runs several queries in parallel."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def together(asks: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all in parallel; raise the first failure itself, not a group."""
    if len(asks) <= 1:
        return [await ask for ask in asks]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask) for ask in asks]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
