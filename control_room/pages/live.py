"""Parts of pages that are told anew as they change, as server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from sse_starlette import EventSourceResponse, ServerSentEvent

BEAT_SECONDS = 15.0  # between comments that keep a quiet stream open


def live(part: Callable[[], Awaitable[str]], seconds: float, closing: asyncio.Event) -> EventSourceResponse:
    """The part at once, and again when it reads otherwise, looked at so often; `closing` ends it."""

    async def events() -> AsyncIterator[ServerSentEvent]:
        told = None
        while not closing.is_set():
            now = await part()
            if now != told:
                yield ServerSentEvent(now, event="part", sep="\n")
                told = now
            try:
                async with asyncio.timeout(seconds):
                    await closing.wait()
            except TimeoutError:
                continue

    return EventSourceResponse(
        events(),
        ping=BEAT_SECONDS,
        ping_message_factory=_beat,
        sep="\n",
        headers={"cache-control": "no-store"},
    )


def _beat() -> ServerSentEvent:
    return ServerSentEvent(comment="berth", sep="\n")
