"""Bare metal: a board of nodes with Ironic's state and placement's record of each."""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from control_room.core.metal import MetalNodes, board
from control_room.metal_reads import MetalReader
from control_room.pages.frame import PageContext, PageGroup, Renderer, parameter
from control_room.pages.page_updates import PageUpdates, soon

SECONDS = 10.0  # between two reads of all nodes; a node with a message about it is read immediately
SHOWN = 12  # nodes of a column, unless it is the only column
SHOWN_ALONE = 500


class MetalPages(PageGroup):
    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        changes = context.events.metal
        self._reader = MetalReader(context.operations.metal, context.tasks, changes, SECONDS)
        self._updates = PageUpdates(SECONDS, changes, self._reader.interval)

    async def page(self, request: Request) -> Response:
        nodes = await soon(request, self._reader.nodes())
        filters = _filters(request)
        query = urlencode({name: value for name, value in filters.items() if value})
        return self._renderer.page(
            request,
            "metal.html",
            part=self._part(request, nodes),
            live=f"/metal/events?{query}" if query else "/metal/events",
            q=filters["q"],
            state=filters["state"],
        )

    async def events(self, request: Request) -> Response:
        async def part() -> str:
            return self._part(request, await self._reader.latest())

        return self._updates.stream(request, part, self._reader.following())

    def _part(self, request: Request, nodes: MetalNodes | None) -> str:
        filters, now = _filters(request), self._context.clock.now()
        most = SHOWN_ALONE if filters["state"] else SHOWN
        with self._updates.interval.rendering():
            return self._renderer.part(
                "metal_part.html",
                read=nodes,
                columns=board(nodes, now, filters["q"], filters["state"], most) if nodes else [],
                now=now,
                **filters,
            )


def _filters(request: Request) -> dict[str, str]:
    return {name: parameter(request, name) for name in ("q", "state")}
