"""Routes beyond the Placement API: health, metrics, bulk loading, and the feed of changes."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from sse_starlette import EventSourceResponse, ServerSentEvent

from bus.errors import Unavailable
from bus.replication import PlacementChanged
from bus.resources import LoadProviders
from placement_worker.http.api_call import ApiAnswer, ApiCall, encode, json_answer
from placement_worker.http.errors import Problem, bad_request
from placement_worker.memory import Forgotten
from placement_worker.placement import Placement

_load = msgspec.json.Decoder(LoadProviders)


BEAT_SECONDS = 15.0  # between comments that keep a quiet feed open

_ANEW = "read everything again, and follow from there"


class ExtensionHandlers:
    def __init__(self, placement: Placement, closing: asyncio.Event) -> None:
        """Once `closing` is set, the readiness check fails, and all feeds end."""
        self.placement = placement
        self.closing = closing

    async def alive(self, call: ApiCall) -> ApiAnswer:
        return json_answer({"status": "alive"})

    async def ready(self, call: ApiCall) -> ApiAnswer:
        """Answer the readiness check: whether the database answers and the index is complete."""
        if self.closing.is_set():
            raise Problem(503, "it is being stopped")
        await self.placement.memory.fresh()
        return json_answer({"status": "ready", "seen": self.placement.memory.index.seen})

    async def metrics(self, call: ApiCall) -> ApiAnswer:
        return ApiAnswer(body=generate_latest(), kind=CONTENT_TYPE_LATEST)

    async def load(self, call: ApiCall) -> ApiAnswer:
        loaded = await self.placement.bulk_load.load(await call.decoded(_load))
        return json_answer({"results": loaded.results})

    async def changes(self, call: ApiCall) -> EventSourceResponse:
        after = await self._after(call)
        changes = self.placement.memory.feed(after, self.closing)
        first = None
        if after != self.placement.memory.index.seen:
            try:
                first = await anext(changes)  # raises if the number has expired
            except Forgotten as gone:
                raise Problem(410, f"{gone}: {_ANEW}") from None
        return EventSourceResponse(
            _events(first, changes),
            headers={name.decode(): value.decode() for name, value in call.own_headers()},
            ping=BEAT_SECONDS,
            ping_message_factory=_beat,
            sep="\n",
        )

    async def _after(self, call: ApiCall) -> int:
        await self.placement.memory.fresh()
        newest = self.placement.memory.index.seen
        given = call.headers.get("last-event-id") or dict(call.pairs).get("after")
        if given is None:
            return newest
        if not given.isascii() or not given.isdigit() or len(given) > 18:
            raise bad_request(f"after: the number of a change, not {given[:40]!r}")
        after = int(given)
        if after > newest:
            raise Problem(
                410,
                f"after: there has been no change {after}, the newest is {newest}; if there was one, the"
                f" database is another or was put back: {_ANEW}",
            )
        return after


async def _events(
    first: PlacementChanged | None, changes: AsyncIterator[PlacementChanged]
) -> AsyncIterator[ServerSentEvent]:
    yield _beat()  # the client sees immediately that the feed works
    try:
        if first is not None:
            yield _event(first)
        async for change in changes:
            yield _event(change)
    except Forgotten as gone:  # the client is slower than changes are kept
        yield ServerSentEvent(encode(str(gone)).decode(), event="forgotten", sep="\n")
    except Unavailable:
        return  # it comes back by itself, from the last number it saw


def _beat() -> ServerSentEvent:
    return ServerSentEvent(comment="berth", sep="\n")


def _event(change: PlacementChanged) -> ServerSentEvent:
    fields = {
        "number": change.number,
        "changes": [msgspec.structs.asdict(one) for one in change.changes],
        **({"aggregates": change.aggregates} if change.aggregates else {}),
    }
    return ServerSentEvent(encode(fields).decode(), event="changed", id=str(change.number), sep="\n")
