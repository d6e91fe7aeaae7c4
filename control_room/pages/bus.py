"""The bus: every topic and query, and the load of their queues, sent again while the page is open."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from bus.errors import BrokerRefused, Unavailable
from control_room.bus_load import BusShown, bus_shown
from control_room.pages.frame import Frame, OpenRoom
from control_room.pages.live import live

SECONDS = 2.0
PATIENCE = 0.5  # seconds that a page waits for the count; a later count is sent as an event
_SHARE = 10.0  # of the time at most that is spent counting: with many queues it is done less often


class BusPages:
    def __init__(self, room: OpenRoom, frame: Frame) -> None:
        self._room = room
        self._frame = frame
        self._counting = asyncio.Lock()
        self._shown: BusShown | None = None
        self._problem = ""
        self._good_until = float("-inf")
        self._took = 0.0
        self._quick = False  # counting takes so little that a page may wait for it

    async def page(self, request: Request) -> Response:
        topic = request.query_params.get("topic", "")
        # It goes on when the page waits no longer: where it takes long it would else never end.
        counting = self._room.beside.begin(self._counted())
        await asyncio.wait([counting], timeout=None if self._quick else PATIENCE)
        return self._frame.page(request, "bus.html", part=self._part(topic), topic=topic)

    async def events(self, request: Request) -> Response:
        topic = request.query_params.get("topic", "")

        async def told() -> str:
            await self._counted()
            return self._part(topic)

        return live(request, told, SECONDS)

    def _part(self, topic: str) -> str:
        return self._frame.part(
            "bus_part.html",
            bus=self._shown,
            problem=self._problem,
            topic=self._shown.topic(topic) if self._shown else None,
            elsewhere=self._room.means.bus.elsewhere,
        )

    async def _counted(self) -> None:
        """Count the messages, once for all readers."""
        clock = self._room.clock
        async with self._counting:
            if clock.monotonic() < self._good_until:
                return
            try:
                self._shown, self._problem = await self._count(), ""
            except (Unavailable, BrokerRefused) as problem:
                self._problem = str(problem)
            self._good_until = clock.monotonic() + max(SECONDS * 0.9, _SHARE * self._took)

    async def _count(self) -> BusShown:
        looking, means = self._room.looking, self._room.means.bus
        cells = looking.cell_names(await looking.seen())
        heard = self._room.hearing.roll.agents(self._room.clock.now())
        queues = await means.queues(cells, [(agent.cell, agent.agent) for agent in heard])
        began = self._room.clock.monotonic()
        depths = await means.depths([queue.name for queue in queues])
        self._took = self._room.clock.monotonic() - began
        self._quick = self._took < PATIENCE
        return bus_shown(queues, depths)
