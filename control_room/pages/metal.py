"""Bare metal: a board of nodes with Ironic's state and placement's record of each."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from bus.errors import Unavailable
from control_room.core.metal import BoardNode, MetalNodes, board
from control_room.operations import MetalOperations
from control_room.pages.frame import PageContext, PageGroup, Renderer, parameter
from control_room.pages.page_updates import PageUpdates, soon
from control_room.shared_data import SPACING, TIMES, BackgroundTasks, SharedData
from control_room.worker import NodeChanges

MOST = 40  # nodes that are read by themselves at a time
_UNWATCHED_SECONDS = 3.0  # that the nodes are used while no open page receives their changes
_RETRY_SECONDS = 1.0  # until placement's changes are received again after the bus was unreachable


class MetalReader:
    """The bare-metal nodes for all pages, read from Ironic periodically and after messages about them."""

    def __init__(
        self, operations: MetalOperations, tasks: BackgroundTasks, changes: NodeChanges, seconds: float
    ) -> None:
        """Read all nodes every `seconds` while there are readers."""
        self._operations = operations
        self._tasks = tasks
        self._nodes = MetalNodes(at=0.0)
        self._ids: set[str] = set()
        self._changed: dict[str, BoardNode | None] = {}  # read by themselves since a read of all began
        self._all = SharedData(tasks, self._read_all, changes=changes.of_all, seconds=seconds, times=TIMES)
        self._some = SharedData(
            tasks, self._read_some, changes=changes, seconds=float("inf"), spacing=SPACING
        )
        self._open = 0
        self._following: asyncio.Task[None] | None = None
        self.changes = changes
        self.interval = self._some.interval

    async def nodes(self) -> MetalNodes:
        """Return the bare-metal nodes for a page that is loaded."""
        await self._all.get(None, float("inf") if self._open else _UNWATCHED_SECONDS)
        return self._nodes

    async def latest(self) -> MetalNodes:
        """Return the bare-metal nodes for an open page, after nodes with a message were read again."""
        if not self._nodes.at:
            return await self.nodes()
        if (reading := self._all.refresh(None)) is not None:
            reading.add_done_callback(lambda _: self.changes.notify())
        await self._some.latest(None)
        return self._nodes

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Receive placement's changes of nodes within the block, while a page is open."""
        self._open += 1
        if self._following is None:
            self._following = self._tasks.start(self._follow())
        try:
            yield
        finally:
            self._open -= 1
            if not self._open and self._following is not None:
                self._following.cancel()
                self._following = None

    async def _read_all(self, _: None) -> None:
        self._changed.clear()
        self.changes.nodes.clear()
        self._set(_with(await self._operations.read(None), self._changed))

    async def _read_some(self, _: None) -> None:
        some = list(self.changes.nodes)[:MOST]
        if not some:
            return
        for id_ in some:
            del self.changes.nodes[id_]
        read = await self._operations.read(some)
        if read.problem:  # the problem is reported when all nodes are read
            self.changes.of_all.notify()
            return
        found = {node.id: node for node in read.nodes}
        changed = {id_: found.get(id_) for id_ in some}
        self._changed.update(changed)
        self._set(_with(self._nodes, changed))
        if self.changes.nodes:
            self.changes.notify()

    def _set(self, nodes: MetalNodes) -> None:
        self._nodes, self._ids = nodes, {node.id for node in nodes.nodes}

    async def _follow(self) -> None:
        while True:
            with suppress(Unavailable):
                subscription = await self._operations.changes()
                try:
                    while True:
                        self._add(await subscription.get())
                finally:
                    await subscription.stop()
            await asyncio.sleep(_RETRY_SECONDS)

    def _add(self, changes: Iterable[tuple[str, bool]]) -> None:
        """Record changed providers, each with whether more than its usage changed; an unknown provider may
        be a new node.
        """
        nodes = [root for root, reshaped in changes if reshaped or root in self._ids]
        if nodes:
            self.changes.add(nodes)


def _with(nodes: MetalNodes, changed: dict[str, BoardNode | None]) -> MetalNodes:
    found = {node.id: node for node in nodes.nodes} | changed
    return replace(nodes, nodes=tuple(node for node in found.values() if node is not None))


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
