"""The route table of the control room."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from control_room.pages.builds import BuildPages
from control_room.pages.bus import BusPages
from control_room.pages.capacity import CapacityPages
from control_room.pages.entry import Entry
from control_room.pages.frame import Frame, OpenRoom, PageRefused
from control_room.pages.heat import HeatPages
from control_room.pages.host import HostPages
from control_room.pages.letters import LetterPages
from control_room.pages.metal import MetalPages
from control_room.pages.moves import MovePages
from control_room.pages.now import NowPages
from control_room.pages.signing_in import SigningIn
from control_room.pages.static_files import static_file
from control_room.pages.waiting import WaitingPages
from control_room.pages.what_if import WhatIfPages


def pages_app(room: OpenRoom) -> Starlette:
    frame = Frame(room)
    heat, host = HeatPages(room, frame), HostPages(room, frame)
    now, builds = NowPages(room, frame), BuildPages(room, frame)
    signing = SigningIn(room, frame)
    waiting, moves = WaitingPages(room, frame), MovePages(room, frame)
    metal, capacity = MetalPages(room, frame), CapacityPages(room, frame)
    bus, letters = BusPages(room, frame), LetterPages(room, frame)
    app = Starlette(
        routes=[
            Route("/", now.page, methods=["GET"]),
            Route("/now/events", now.events, methods=["GET"]),
            Route("/hosts", heat.page, methods=["GET"]),
            Route("/hosts.json", heat.data, methods=["GET"]),
            Route("/hosts/events", heat.events, methods=["GET"]),
            Route("/hosts/{host}", host.page, methods=["GET"]),
            Route("/hosts/{host}", host.act, methods=["POST"]),
            Route("/builds", builds.list_all, methods=["GET"]),
            Route("/builds/events", builds.events, methods=["GET"]),
            Route("/builds/{build}", builds.page, methods=["GET"]),
            Route("/waiting", waiting.page, methods=["GET"]),
            Route("/waiting", waiting.act, methods=["POST"]),
            Route("/waiting/events", waiting.events, methods=["GET"]),
            Route("/what-if", WhatIfPages(room, frame).page, methods=["GET"]),
            Route("/what-if/capacity", capacity.page, methods=["GET"]),
            Route("/what-if/capacity/events", capacity.events, methods=["GET"]),
            Route("/bus", bus.page, methods=["GET"]),
            Route("/bus/events", bus.events, methods=["GET"]),
            Route("/bus/dead", letters.list_all, methods=["GET"]),
            Route("/bus/dead", letters.act, methods=["POST"]),
            Route("/bus/letter", letters.page, methods=["GET"]),
            Route("/metal", metal.page, methods=["GET"]),
            Route("/metal/events", metal.events, methods=["GET"]),
            Route("/moves", moves.page, methods=["GET"]),
            Route("/moves", moves.act, methods=["POST"]),
            Route("/moves/events", moves.events, methods=["GET"]),
            Route("/moves/{move}", moves.one, methods=["GET"]),
            Route("/moves/{move}", moves.steer, methods=["POST"]),
            Route("/moves/{move}/events", moves.one_events, methods=["GET"]),
            Route("/login", signing.page, methods=["GET"]),
            Route("/login", signing.sign_in, methods=["POST"]),
            Route("/logout", signing.sign_out, methods=["POST"]),
            Route("/theme", signing.theme, methods=["POST"]),
            Route("/static/{name}", static_file, methods=["GET"]),
            Route("/healthz", _well, methods=["GET"]),
            Route("/{path:path}", _nowhere),
        ],
        middleware=[Middleware(Entry, room, frame)],
        exception_handlers={405: _wrong_method},
    )
    app.router.redirect_slashes = False
    app.state.sessions = room.sessions
    return app


async def _well(request: Request) -> Response:
    return PlainTextResponse("well\n")


async def _nowhere(request: Request) -> Response:
    raise PageRefused(404, "There is no such page", "The address is wrong, or what it showed is gone.")


async def _wrong_method(request: Request, problem: Exception) -> Response:
    headers = problem.headers if isinstance(problem, HTTPException) else None
    return PlainTextResponse("This page does not support this method.\n", 405, headers=headers)
