"""Sends parts of open pages to browsers again, when their data change."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TypeVar

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request

from bus.clock import set_within
from control_room.access import EventStream, Sessions
from control_room.kit.frame import PageContext
from control_room.kit.page_requests import session_of
from control_room.kit.shared_data import READ_TIMES, SPACING, Changes, SharedData, UpdateInterval

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


KEEPALIVE_SECONDS = 15.0  # between comments that keep a quiet stream open


PATIENCE = 0.4  # seconds that a page waits for its data


class PageUpdates:
    """Sends a part of an open page to the browser: initially, every `seconds`, and after `changes`."""

    def __init__(
        self, seconds: float, changes: Changes | None = None, interval: UpdateInterval | None = None
    ) -> None:
        self._seconds = seconds
        self._changes = changes
        self.interval = interval or UpdateInterval()

    def stream(
        self,
        request: Request,
        part: Callable[[], Awaitable[str]],
        while_open: AbstractAsyncContextManager[None] | None = None,
    ) -> EventSourceResponse:
        """Return an event stream that sends a page's part until the browser leaves or the session ends; the
        context `while_open` is entered for this time.
        """
        return EventSourceResponse(
            self._events(request, part, while_open or nullcontext()),
            ping=KEEPALIVE_SECONDS,
            ping_message_factory=lambda: ServerSentEvent(comment="berth", sep="\n"),
            sep="\n",
            headers={"cache-control": "no-store"},
        )

    async def _events(
        self,
        request: Request,
        part: Callable[[], Awaitable[str]],
        while_open: AbstractAsyncContextManager[None],
    ) -> AsyncIterator[ServerSentEvent]:
        sessions: Sessions = request.app.state.sessions
        session, sent = session_of(request), None
        changes = self._changes or Changes()
        with sessions.stream(session) as stream, changes.wake(stream.wake):
            async with while_open:
                while not stream.ended.is_set():
                    stream.wake.clear()
                    now = await _made(part, stream)
                    if now is not None and now != sent:
                        yield ServerSentEvent(now, event="part", sep="\n")
                        sent = now
                    pause = self.interval.seconds
                    await set_within(stream.ended, min(pause, self._seconds))
                    await set_within(stream.wake if self._changes else stream.ended, self._seconds - pause)
            if sessions.has_ended(session):
                yield ServerSentEvent("", event="signed-out", sep="\n")


def live_data(
    context: PageContext, read: Callable[[K], Awaitable[V]], changes: Changes, seconds: float
) -> tuple[SharedData[K, V], PageUpdates]:
    """Return a cache of a page's data by key, and the updates that send the page's part to open browsers.
    `read` reads a key's data again after `changes`, or when they are about `seconds` old.
    """
    data = SharedData(
        context.tasks, read, changes=changes, seconds=seconds * 0.9, times=READ_TIMES, spacing=SPACING
    )
    return data, PageUpdates(seconds, changes, data.interval)


async def _made(part: Callable[[], Awaitable[str]], stream: EventStream) -> str | None:
    try:
        async with asyncio.timeout(None) as timeout:
            with stream.endable(timeout):
                return await part()
    except TimeoutError:
        if not stream.ended.is_set():
            raise
        return None


async def soon(request: Request, data: Awaitable[V]) -> V | None:
    """Return a page's data if they arrive within 0.4 s, else None: the page's event stream sends them later.

    With `wait=1` in the URL, wait until the data are ready or the browser has disconnected.
    """
    waits = request.query_params.get("wait") == "1"
    found: V | None = None
    problem: Exception | None = None
    try:
        async with asyncio.timeout(None if waits else PATIENCE) as limit, asyncio.TaskGroup() as group:
            leaving = group.create_task(_end_when_left(request, limit))
            try:
                found = await data
            except Exception as raised:  # raised below: the task group would wrap the error
                problem = raised
            leaving.cancel()
    except TimeoutError:
        return None
    if problem is not None:
        raise problem
    return found


async def _end_when_left(request: Request, limit: asyncio.Timeout) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    limit.reschedule(0.0)
