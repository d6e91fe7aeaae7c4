"""Routes beyond the Placement API: health, metrics and bulk loading."""

import asyncio

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from bus.resources import LoadProviders
from placement_worker.http.api_call import ApiAnswer, ApiCall, said
from placement_worker.http.errors import Problem, bad_request
from placement_worker.http.validation import refuse_nul
from placement_worker.placement import Placement

_load = msgspec.json.Decoder(LoadProviders)


class ExtensionHandlers:
    def __init__(self, placement: Placement, closing: asyncio.Event) -> None:
        """Create the handlers; once `closing` is set, the readiness check fails."""
        self.placement = placement
        self.closing = closing

    async def alive(self, call: ApiCall) -> ApiAnswer:
        return said({"status": "alive"})

    async def ready(self, call: ApiCall) -> ApiAnswer:
        """Check that the database answers and that the index is complete."""
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
