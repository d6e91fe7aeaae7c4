"""Background tasks of the pages, which end with them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

log = logging.getLogger(__name__)


class Beside:
    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
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
async def beside_the_pages() -> AsyncIterator[Beside]:
    async with asyncio.TaskGroup() as group:
        tasks = Beside(group)
        try:
            yield tasks
        finally:
            tasks.end_all()


async def _logged(work: Coroutine[Any, Any, Any]) -> None:
    try:
        await work
    except Exception:
        log.exception("beside the pages: a bug")
