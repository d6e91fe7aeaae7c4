"""The bus: every topic and query, and the load of their queues, sent again while the page is open."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from bus.errors import BrokerRefused, Unavailable
from control_room.bus_load import BusLoad, bus_load
from control_room.pages.frame import PageContext, PageGroup, Renderer
from control_room.pages.page_updates import PageUpdates, soon
from control_room.shared_data import SharedData

SECONDS = 2.0
_COUNT_TIMES = 10.0  # a tenth of the time at most is spent counting: many queues are counted less often


@dataclass(frozen=True)
class Counted:
    load: BusLoad | None = None
    problem: str = ""


class BusPages(PageGroup):
    def __init__(self, context: PageContext, renderer: Renderer) -> None:
        super().__init__(context, renderer)
        self._updates = PageUpdates(SECONDS)
        self._loads = SharedData(context.tasks, self._count, seconds=SECONDS * 0.9, times=_COUNT_TIMES)
        self._last = Counted()

    async def page(self, request: Request) -> Response:
        topic = request.query_params.get("topic", "")
        counted = await soon(request, self._counted())
        part = self._part(topic, counted or self._last)
        return self._renderer.page(request, "bus.html", part=part, topic=topic)

    async def events(self, request: Request) -> Response:
        topic = request.query_params.get("topic", "")

        async def part() -> str:
            return self._part(topic, await self._counted())

        return self._updates.stream(request, part)

    def _part(self, topic: str, counted: Counted) -> str:
        return self._renderer.part(
            "bus_part.html",
            bus=counted.load,
            problem=counted.problem,
            topic=counted.load.topic(topic) if counted.load else None,
            elsewhere=self._context.operations.bus.elsewhere,
        )

    async def _counted(self) -> Counted:
        return await self._loads.get(tuple(await self._context.status.cells()))

    async def _count(self, cells: tuple[str, ...]) -> Counted:
        context, operations = self._context, self._context.operations.bus
        agents = context.events.heartbeats.agents(context.clock.now())
        try:
            queues = await operations.queues(cells, [(agent.cell, agent.agent) for agent in agents])
            depths = await operations.depths([queue.name for queue in queues])
            self._last = Counted(bus_load(queues, depths))
        except (Unavailable, BrokerRefused) as problem:
            self._last = Counted(self._last.load, str(problem))
        return self._last
