"""Background tasks of the pages, which end with them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class BackgroundTasks:
    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T | None]:
        """Start a task that ends with the pages or when it is cancelled. Its error is logged and does not end
        the pages.
        """
        task = self._group.create_task(_logged(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # a task that is cancelled early never begins it
        return task

    def end_all(self) -> None:
        for task in self._tasks:
            task.cancel()


@asynccontextmanager
async def background_tasks() -> AsyncIterator[BackgroundTasks]:
    async with asyncio.TaskGroup() as group:
        tasks = BackgroundTasks(group)
        try:
            yield tasks
        finally:
            tasks.end_all()


async def _logged(work: Coroutine[Any, Any, T]) -> T | None:
    try:
        return await work
    except Exception:
        log.exception("background task of the pages failed: a bug")
        return None
