"""The page about the capacity over time: history and forecast of each resource class and flavor."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from control_room.kit import (
    AddedPages,
    PageContext,
    PageGroup,
    PagePart,
    PageUpdates,
    Renderer,
    Reply,
    live,
    parameter,
    query,
    soon,
)
from features.capacity_history.history import CapacityHistory, capacity_samples, histories, in_words
from features.capacity_history.messages import CAPACITY, CapacityKind, FindCapacity

SECONDS = 60.0  # between two updates: samples are taken every five minutes
PERIODS = {"2d": 2, "30d": 30, "1y": 366}
USUAL = "30d"


def make(context: PageContext, renderer: Renderer) -> AddedPages:
    pages = CapacityHistoryPages(context, renderer)
    return AddedPages(routes=live("/capacity", pages))


class CapacityHistoryPages(PageGroup):
    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        self._updates = PageUpdates(SECONDS)

    async def page(self, request: Request) -> Response:
        part = await soon(request, self._part(request)) or self._rendered(request, None)
        return self._renderer.page(request, "capacity_history.html", part=part, query=request.url.query)

    async def events(self, request: Request) -> Response:
        return self._updates.stream(request, lambda: self._part(request))

    async def _part(self, request: Request) -> str:
        since = self._context.clock.now() - PERIODS[self._period(request)] * 86400.0
        zone = parameter(request, "zone") or None
        kinds: tuple[CapacityKind, ...] = ("class", "flavor")
        read = [
            query("a scheduler", self._read, FindCapacity(since=since, kind=kind, zone=zone))
            for kind in kinds
        ]
        return self._rendered(request, await asyncio.gather(*read))

    async def _read(self, question: FindCapacity) -> list[CapacityHistory]:
        samples = await capacity_samples(self._context.queries.asker(CAPACITY), question)
        return await asyncio.to_thread(histories, samples)  # forecasts take computation

    def _period(self, request: Request) -> str:
        period = parameter(request, "since")
        return period if period in PERIODS else USUAL

    def _rendered(self, request: Request, replies: list[Reply[list[CapacityHistory]]] | None) -> str:
        return self._renderer.part(
            "capacity_history_part.html", replies=replies, period=self._period(request), periods=PERIODS,
            zone=parameter(request, "zone"), in_words=in_words,
        )  # fmt: skip


PART = PagePart(make)
