"""Bare metal: a board of nodes with Ironic's state and placement's record of each."""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from control_room.core.metal import MetalSeen, board
from control_room.metal_reads import MetalLooks
from control_room.pages.frame import Frame, OpenRoom
from control_room.pages.live import at_once, live

SECONDS = 10.0  # seconds between two reads of all nodes; a node with a message about it is read at once
SHOWN = 12  # nodes of a column, unless it is the only column
SHOWN_ALONE = 500


class MetalPages:
    def __init__(self, room: OpenRoom, frame: Frame) -> None:
        self._room = room
        self._frame = frame
        self._looks = MetalLooks(room.means.metal, room.clock, room.hearing.metal, room.beside, SECONDS)

    async def page(self, request: Request) -> Response:
        seen = await at_once(request, self._looks.at())
        said = urlencode({name: value for name, value in _said(request).items() if value})
        return self._frame.page(
            request,
            "metal.html",
            part=self._part(request, seen),
            live=f"/metal/events?{said}" if said else "/metal/events",
            q=_said(request)["q"],
            state=_said(request)["state"],
        )

    async def events(self, request: Request) -> Response:
        async def told() -> str:
            return self._part(request, await looks.latest())

        looks = self._looks
        return live(request, told, SECONDS, looks.news, looks.pace, looks.open())

    def _part(self, request: Request, seen: MetalSeen | None) -> str:
        said, now = _said(request), self._room.clock.now()
        most = SHOWN_ALONE if said["state"] else SHOWN
        with self._looks.pace.making():
            return self._frame.part(
                "metal_part.html",
                seen=seen,
                columns=board(seen, now, said["q"], said["state"], most) if seen else [],
                now=now,
                **said,
            )


def _said(request: Request) -> dict[str, str]:
    asked = request.query_params
    return {name: asked.get(name, "").strip()[:255] for name in ("q", "state")}
