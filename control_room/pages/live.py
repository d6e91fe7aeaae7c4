"""Parts of pages that are sent again whenever they change, as server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TypeVar

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request

from control_room.access import EventStream, Sessions
from control_room.page_refresh import Pace, Stirring
from control_room.pages.frame import session_of

BEAT_SECONDS = 15.0  # between comments that keep a quiet stream open
AT_ONCE = 0.4  # seconds a page waits for what it shows

V = TypeVar("V")


def live(
    request: Request,
    part: Callable[[], Awaitable[str]],
    seconds: float,
    stirring: Stirring | None = None,
    pace: Pace | None = None,
    meanwhile: AbstractAsyncContextManager[None] | None = None,
) -> EventSourceResponse:
    """Send the part immediately and after each change, until the reader leaves or the session ends.

    The part is made every `seconds`, and as soon as `stirring` reports news and `pace` allows. `meanwhile` is
    open as long as the stream.
    """
    stirs, news, pace = stirring is not None, stirring or Stirring(), pace or Pace()
    sessions: Sessions = request.app.state.sessions
    session = session_of(request)

    async def events() -> AsyncIterator[ServerSentEvent]:
        sent = None
        with sessions.stream(session) as stream, news.wakes(stream.wake):
            async with meanwhile or nullcontext():
                while not stream.ended.is_set():
                    stream.wake.clear()
                    now = await _made(part, stream)
                    if now is not None and now != sent:
                        yield ServerSentEvent(now, event="part", sep="\n")
                        sent = now
                    await _passed(stream.ended, min(pace.pause, seconds))
                    await _passed(stream.wake if stirs else stream.ended, seconds - pace.pause)
            if sessions.has_ended(session):
                yield ServerSentEvent("", event="signed-out", sep="\n")

    return EventSourceResponse(
        events(),
        ping=BEAT_SECONDS,
        ping_message_factory=_beat,
        sep="\n",
        headers={"cache-control": "no-store"},
    )


async def _made(part: Callable[[], Awaitable[str]], stream: EventStream) -> str | None:
    """Return the part; None if the stream ends before it is made."""
    try:
        async with asyncio.timeout(None) as working:
            with stream.endable(working):
                return await part()
    except TimeoutError:
        if not stream.ended.is_set():
            raise
        return None


async def _passed(sooner: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most so many seconds."""
    if seconds <= 0:
        return
    try:
        async with asyncio.timeout(seconds):
            await sooner.wait()
    except TimeoutError:
        return


async def at_once(request: Request, part: Awaitable[V]) -> V | None:
    """Return the part, or None if it takes longer than a page waits: the event stream sends it later.

    With `wait=1` the page waits until the part is made or the reader has left.
    """
    waits = request.query_params.get("wait") == "1"
    made: V | None = None
    bug: Exception | None = None
    try:
        async with asyncio.timeout(None if waits else AT_ONCE) as limit, asyncio.TaskGroup() as group:
            leaving = group.create_task(_end_when_left(request, limit))
            try:
                made = await part
            except Exception as raised:  # kept out of the group, which would wrap it
                bug = raised
            leaving.cancel()
    except TimeoutError:
        return None
    if bug is not None:
        raise bug
    return made


async def _end_when_left(request: Request, limit: asyncio.Timeout) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    limit.reschedule(0.0)


def _beat() -> ServerSentEvent:
    return ServerSentEvent(comment="berth", sep="\n")
