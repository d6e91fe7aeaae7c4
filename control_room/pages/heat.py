"""Hosts: all of them as tiles; the page is small, what it draws comes as columns, and then as news."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bus.errors import AnswerRefused, Unavailable, Unroutable
from control_room.core.heat import as_columns, as_news, flavor_of
from control_room.fleet import Fleets
from control_room.pages.frame import Frame, OpenRoom

USUAL = "VCPU:2,MEMORY_MB:4096,DISK_GB:20"


class HeatPages:
    def __init__(self, room: OpenRoom, frame: Frame) -> None:
        self._frame = frame
        self._fleets = Fleets(room.questions, room.clock)

    async def page(self, request: Request) -> Response:
        return self._frame.page(request, "hosts.html", flavor=request.query_params.get("flavor", USUAL))

    async def data(self, request: Request) -> Response:
        """All, or where the browser says what it has only what moved since."""
        asked = request.query_params
        try:
            flavor = flavor_of(asked.get("flavor", USUAL))
        except ValueError as problem:
            return _json({"problem": str(problem)}, 400)
        try:
            fleet = await self._fleets.fleet()
        except (Unavailable, Unroutable, AnswerRefused) as problem:
            return _json({"problem": f"Placement does not answer: {problem}."}, 503)
        since = asked.get("since", "")
        if asked.get("layout") == str(fleet.layout) and since.isascii() and since.isdigit():
            return _json(as_news(fleet, int(since[:18]), flavor))
        return _json(as_columns(fleet, flavor))


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
