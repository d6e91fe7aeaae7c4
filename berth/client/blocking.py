"""Runs a client's coroutines for programs without asyncio, in the event loop of a background thread."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

C = TypeVar("C", bound=AbstractAsyncContextManager[Any])
R = TypeVar("R")


class Blocking(Generic[C]):
    """A client for programs without asyncio: `with Blocking(RestClient(url, token)) as berth`, then
    `berth(lambda client: client.boot(request))`, or `berth.each(lambda client: client.events())`.
    """

    def __init__(self, client: C) -> None:
        self._client = client
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="berth access client", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._client.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._client.__aexit__(kind, problem, trace))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __call__(self, work: Callable[[C], Coroutine[Any, Any, R]]) -> R:
        return self._run(work(self._client))

    def each(self, work: Callable[[C], AsyncIterator[R]]) -> Iterator[R]:
        """Yield the values of the asynchronous iterator that `work` returns for the client."""
        found = work(self._client)
        while True:
            try:
                yield self._run(_next(found))
            except StopAsyncIteration:
                return

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _next(found: AsyncIterator[R]) -> R:
    return await anext(found)
