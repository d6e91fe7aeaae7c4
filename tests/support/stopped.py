"""Processes of one event loop that can be stopped and continued, as SIGSTOP and SIGCONT do: what happens
meanwhile, a deadline even, they find out when they go on."""

import asyncio
import contextvars
from collections.abc import Coroutine, Generator
from typing import Any

_whose: contextvars.ContextVar["StoppableProcess | None"] = contextvars.ContextVar("whose", default=None)


class StoppableProcess:
    def __init__(self) -> None:
        self._going = asyncio.Event()
        self._going.set()

    @property
    def stopped(self) -> bool:
        return not self._going.is_set()

    def stop(self) -> None:
        self._going.clear()

    def go_on(self) -> None:
        self._going.set()

    async def going(self) -> None:
        await self._going.wait()

    def start(self, group: asyncio.TaskGroup, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        asyncio.get_running_loop().set_task_factory(_task)
        context = contextvars.copy_context()
        context.run(_whose.set, self)
        return group.create_task(work, context=context)

    def __repr__(self) -> str:
        return "stopped" if self.stopped else "going"


def outside(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())


def _task(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
    context = more.get("context")
    process = _whose.get() if context is None else context.get(_whose)
    return asyncio.Task(work if process is None else _Steps(process, work), loop=loop, **more)


class _Steps(Coroutine[Any, Any, Any]):
    """One task's steps, each taken when its process is going."""

    def __init__(self, process: StoppableProcess, work: Coroutine[Any, Any, Any]) -> None:
        self._process = process
        self._work = work
        self._taken = self._take()
        self._begun = False

    def send(self, value: Any) -> Any:
        self._begun = True
        return self._taken.send(value)

    def throw(self, *error: Any) -> Any:
        return self._taken.throw(*error) if self._begun else self._work.throw(*error)

    def close(self) -> None:
        self._taken.close()
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._taken

    def _take(self) -> Generator[Any, Any, Any]:
        value, error = None, None
        while True:
            try:
                waits_for = self._work.throw(error) if error is not None else self._work.send(value)
            except StopIteration as end:
                return end.value
            value = error = None
            try:
                value = yield waits_for
            except GeneratorExit:
                self._work.close()
                raise
            except BaseException as thrown:
                error = thrown
            while self._process.stopped:
                try:
                    yield from self._process.going().__await__()
                except asyncio.CancelledError as thrown:  # it finds that out when it goes on
                    error = thrown
