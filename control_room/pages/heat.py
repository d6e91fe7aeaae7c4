"""Hosts: all of them as tiles; the page is small, what it draws comes as columns, and then as news."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from control_room.core.heat import as_columns, as_news, flavor_of
from control_room.fleet import Fleets
from control_room.page_refresh import Pace
from control_room.pages.frame import Frame, OpenRoom
from control_room.pages.live import live
from control_room.queries import NO_ANSWER

SECONDS = 30.0
USUAL = "VCPU:2,MEMORY_MB:4096,DISK_GB:20"


class HeatPages:
    def __init__(self, room: OpenRoom, frame: Frame) -> None:
        self._frame = frame
        self._stirring = room.hearing.stirring
        self._fleets = Fleets(room.questions, room.clock, self._stirring)
        self._clock = room.clock
        self._pace = Pace()

    async def page(self, request: Request) -> Response:
        return self._frame.page(request, "hosts.html", flavor=request.query_params.get("flavor", USUAL))

    async def events(self, request: Request) -> Response:
        """Only that something has happened: a browser then asks what moved."""

        async def happened() -> str:
            return str(self._stirring.count)

        return live(request, happened, SECONDS, self._stirring, self._pace)

    async def data(self, request: Request) -> Response:
        """Return all hosts, or only the changes if the browser names what it has."""
        asked, began = request.query_params, self._clock.monotonic()
        try:
            flavor = flavor_of(asked.get("flavor", USUAL))
        except ValueError as problem:
            return _json({"problem": str(problem)}, 400)
        try:
            fleet = await self._fleets.fleet()
        except NO_ANSWER as problem:
            return _json({"problem": f"Placement does not answer: {problem}."}, 503)
        since = asked.get("since", "")
        if asked.get("layout") == str(fleet.layout) and since.isascii() and since.isdigit():
            news = as_news(fleet, int(since[:18]), flavor)
            self._pace.cost(self._clock.monotonic() - began)  # placement's too, which works for us meanwhile
            return _json(news)
        return _json(as_columns(fleet, flavor))


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
