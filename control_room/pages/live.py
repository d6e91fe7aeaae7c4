"""Parts of pages that are told anew as they change, as server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TypeVar

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request

from control_room.stirring import Pace, Stirring

BEAT_SECONDS = 15.0  # between comments that keep a quiet stream open
AT_ONCE = 0.4  # seconds a page waits for what it shows

V = TypeVar("V")


def live(
    part: Callable[[], Awaitable[str]],
    seconds: float,
    closing: asyncio.Event,
    stirring: Stirring | None = None,
    pace: Pace | None = None,
    meanwhile: AbstractAsyncContextManager[None] | None = None,
) -> EventSourceResponse:
    """The part at once, and again when it reads otherwise: looked at so often, and, where it is known what
    stirs it, as soon as that does and its pace allows; `closing` ends it. `meanwhile` lasts as long."""
    stirs, stirring, pace = stirring is not None, stirring or Stirring(), pace or Pace()

    async def events() -> AsyncIterator[ServerSentEvent]:
        told = None
        async with meanwhile or nullcontext():
            with stirring.awaited() as stirred:
                while not closing.is_set():
                    stirred.clear()
                    now = await part()
                    if now != told:
                        yield ServerSentEvent(now, event="part", sep="\n")
                        told = now
                    await _passed(closing, min(pace.pause, seconds))
                    await _passed(stirred if stirs else closing, seconds - pace.pause)

    return EventSourceResponse(
        events(),
        ping=BEAT_SECONDS,
        ping_message_factory=_beat,
        sep="\n",
        headers={"cache-control": "no-store"},
    )


async def _passed(sooner: asyncio.Event, seconds: float) -> None:
    """So many seconds at most."""
    if seconds <= 0:
        return
    try:
        async with asyncio.timeout(seconds):
            await sooner.wait()
    except TimeoutError:
        return


async def at_once(request: Request, part: Awaitable[V]) -> V | None:
    """What a page shows from the beginning; None: it takes longer, and is shown when it has come."""
    try:
        async with asyncio.timeout(None if request.query_params.get("wait") == "1" else AT_ONCE):
            return await part
    except TimeoutError:
        return None


def _beat() -> ServerSentEvent:
    return ServerSentEvent(comment="berth", sep="\n")
