"""What the Placement API never had: health, metrics, bulk loading and a feed of changes."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import Send

from bus.errors import Unavailable
from bus.messages import LoadProviders, PlacementChanged
from placement_worker.http.api_call import ApiAnswer, ApiCall, encode, said
from placement_worker.http.errors import Problem, bad_request
from placement_worker.http.schemas import refuse_nul
from placement_worker.memory import Forgotten
from placement_worker.placement import Placement

BEAT_SECONDS = 15.0  # between comments that keep a quiet feed open

_load = msgspec.json.Decoder(LoadProviders)


class Ours:
    def __init__(self, placement: Placement, closing: asyncio.Event) -> None:
        """`closing` ends the feeds, which would otherwise never end."""
        self.placement = placement
        self.closing = closing

    async def alive(self, call: ApiCall) -> ApiAnswer:
        return said({"status": "alive"})

    async def ready(self, call: ApiCall) -> ApiAnswer:
        """The database answers and the index holds what it holds."""
        if self.closing.is_set():
            raise Problem(503, "it is being stopped")
        await self.placement.memory.fresh()
        return said({"status": "ready", "seen": self.placement.memory.index.seen})

    async def metrics(self, call: ApiCall) -> ApiAnswer:
        return ApiAnswer(body=generate_latest(), kind=CONTENT_TYPE_LATEST)

    async def load(self, call: ApiCall) -> ApiAnswer:
        body = await call.body()
        try:
            order = _load.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
            raise bad_request(f"JSON does not validate: {problem}") from None
        refuse_nul(body)
        loaded = await self.placement.bulk_load.load(order)
        return said({"results": loaded.results})

    async def changes(self, call: ApiCall) -> "Feed":
        after = await self._after(call)
        changes = self.placement.memory.feed(after)
        first = None
        if after != self.placement.memory.index.seen:
            try:
                first = await anext(changes)  # there is one, or it is kept no more
            except Forgotten as gone:
                raise Problem(410, f"{gone}: read everything again, and follow from there") from None
        return Feed(call, first, changes, self.closing)

    async def _after(self, call: ApiCall) -> int:
        """The number the client knows already; without one, the newest there is."""
        await self.placement.memory.fresh()
        given = call.headers.get("last-event-id") or dict(call.pairs).get("after")
        if given is None:
            return self.placement.memory.index.seen
        if not given.isascii() or not given.isdigit() or len(given) > 18:
            raise bad_request(f"after: the number of a change, not {given[:40]!r}")
        return int(given)


class Feed:
    """An answer without an end: changes as server-sent events."""

    def __init__(
        self,
        call: ApiCall,
        first: PlacementChanged | None,
        changes: AsyncIterator[PlacementChanged],
        closing: asyncio.Event,
    ) -> None:
        self.call = call
        self._first = first
        self._changes = changes
        self._closing = closing

    async def send(self, send: Send) -> None:
        headers = [
            *self.call.own_headers(),
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-store"),
        ]
        await self.call.start(200, headers, send)
        async with asyncio.TaskGroup() as group:
            speaking = [group.create_task(self._speak(send)), group.create_task(self._beat(send))]
            ends = [group.create_task(self.call.gone()), group.create_task(self._closed()), speaking[0]]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in (*speaking, *ends):
                task.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _speak(self, send: Send) -> None:
        try:
            if self._first is not None:
                await _say(send, _event(self._first))
            async for change in self._changes:
                await _say(send, _event(change))
        except Forgotten as gone:  # the client is slower than changes are kept
            await _say(send, b"event: forgotten\ndata: " + encode(str(gone)) + b"\n\n")
        except Unavailable:
            return  # it comes back by itself, from the last number it saw

    async def _beat(self, send: Send) -> None:
        while True:
            await _say(send, b": berth\n\n")
            await asyncio.sleep(BEAT_SECONDS)

    async def _closed(self) -> None:
        await self._closing.wait()


def _event(change: PlacementChanged) -> bytes:
    told = {"number": change.number, "changes": [msgspec.structs.asdict(one) for one in change.changes]}
    return b"id: %d\nevent: changed\ndata: %b\n\n" % (change.number, encode(told))


async def _say(send: Send, text: bytes) -> None:
    await send({"type": "http.response.body", "body": text, "more_body": True})
