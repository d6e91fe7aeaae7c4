"""Parts of pages that are sent again whenever they change, as server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TypeVar

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request

from control_room.access import EventStream, Sessions
from control_room.pages.frame import session_of
from control_room.shared_data import Changes, UpdateInterval

KEEPALIVE_SECONDS = 15.0  # between comments that keep a quiet stream open
PATIENCE = 0.4  # seconds that a page waits for its data

V = TypeVar("V")


class PageUpdates:
    """Sends a part of a page when it is opened, every `seconds`, and after changes at least `interval`
    apart.
    """

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
        """Send the part until the reader leaves or the session ends, within `while_open`."""
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
                    await _passed(stream.ended, min(pause, self._seconds))
                    await _passed(stream.wake if self._changes else stream.ended, self._seconds - pause)
            if sessions.has_ended(session):
                yield ServerSentEvent("", event="signed-out", sep="\n")


async def _made(part: Callable[[], Awaitable[str]], stream: EventStream) -> str | None:
    try:
        async with asyncio.timeout(None) as working:
            with stream.endable(working):
                return await part()
    except TimeoutError:
        if not stream.ended.is_set():
            raise
        return None


async def _passed(event: asyncio.Event, seconds: float) -> None:
    if seconds <= 0:
        return
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


async def soon(request: Request, data: Awaitable[V]) -> V | None:
    """Return the data if it is ready while a page waits for it, else None: the event stream then sends it
    later.

    With `wait=1` the page waits until the data is ready or the reader has left.
    """
    waits = request.query_params.get("wait") == "1"
    found: V | None = None
    problem: Exception | None = None
    try:
        async with asyncio.timeout(None if waits else PATIENCE) as limit, asyncio.TaskGroup() as group:
            leaving = group.create_task(_end_when_left(request, limit))
            try:
                found = await data
            except Exception as raised:  # kept out of the group, which would wrap it
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
