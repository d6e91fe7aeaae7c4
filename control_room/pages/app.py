"""Maps the URLs of the control room to its pages."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from control_room.pages.audit import AuditPages
from control_room.pages.builds import BuildPages, WaitingPages
from control_room.pages.bus import BusPages, DeadLetterPages
from control_room.pages.capacity import CapacityHistoryPages
from control_room.pages.frame import HERE, PageContext, PageRefused, Renderer
from control_room.pages.hosts import HeatPages, HostPages, MetalPages
from control_room.pages.middleware import SSO, SSO_PROJECT, SSO_START, AccessMiddleware, SignInPages
from control_room.pages.moves import MovePages
from control_room.pages.nova import NovaPages
from control_room.pages.now import NowPages
from control_room.pages.preemptions import PreemptionPages
from control_room.pages.projects import ProjectPages
from control_room.pages.reservations import HeadroomPages, ReservationPages
from control_room.pages.single_sign_on import SingleSignOnPages
from control_room.pages.what_if import CapacityPages, WhatIfPages


def pages_app(context: PageContext) -> Starlette:
    renderer = Renderer(context)
    app = Starlette(
        routes=[*_routes(context, renderer), Route("/{path:path}", _unknown)],
        middleware=[Middleware(AccessMiddleware, context, renderer)],
        exception_handlers={405: _wrong_method},
    )
    app.router.redirect_slashes = False
    app.state.sessions = context.sessions
    return app


def _routes(context: PageContext, renderer: Renderer) -> list[BaseRoute]:
    now, builds = NowPages(context, renderer), BuildPages(context, renderer)
    heat, host = HeatPages(context, renderer), HostPages(context, renderer)
    waiting, moves = WaitingPages(context, renderer), MovePages(context, renderer)
    metal, capacity = MetalPages(context, renderer), CapacityPages(context, renderer)
    bus, letters = BusPages(context, renderer), DeadLetterPages(context, renderer)
    projects, preemptions = ProjectPages(context, renderer), PreemptionPages(context, renderer)
    reservations, headroom = ReservationPages(context, renderer), HeadroomPages(context, renderer)
    nova, sign_in = NovaPages(context, renderer), SignInPages(context, renderer)
    history = CapacityHistoryPages(context, renderer)
    audit = AuditPages(context, renderer)
    single_sign_on = SingleSignOnPages(context, renderer, sign_in)
    read = {
        "/": now.page,
        "/now/events": now.events,
        "/hosts": heat.page,
        "/hosts.json": heat.data,
        "/hosts/events": heat.events,
        "/hosts/maintenance/events": heat.maintenance.events,
        "/hosts/{host}": host.page,
        "/builds": builds.list_all,
        "/builds/events": builds.events,
        "/builds/{build}": builds.page,
        "/waiting": waiting.page,
        "/waiting/events": waiting.events,
        "/projects": projects.page,
        "/projects/events": projects.events,
        "/projects/instances": projects.instances,
        "/reservations": reservations.page,
        "/reservations/events": reservations.events,
        "/headroom": headroom.page,
        "/headroom/events": headroom.events,
        "/preemptions": preemptions.page,
        "/preemptions/events": preemptions.events,
        "/capacity": history.page,
        "/capacity/events": history.events,
        "/what-if": WhatIfPages(context, renderer).page,
        "/what-if/capacity": capacity.page,
        "/what-if/capacity/events": capacity.events,
        "/bus": bus.page,
        "/bus/events": bus.events,
        "/bus/dead": letters.page,
        "/bus/letter": letters.letter,
        "/metal": metal.page,
        "/metal/events": metal.events,
        "/moves": moves.page,
        "/moves/events": moves.events,
        "/moves/{move}": moves.move,
        "/moves/{move}/events": moves.move_events,
        "/nova": nova.page,
        "/nova/events": nova.events,
        "/nova/{instance}": nova.instance,
        "/audit": audit.page,
        "/audit.json": audit.export,
        "/login": sign_in.page,
        SSO_START: single_sign_on.start,
        "/healthz": _health,
    }
    write = {
        "/hosts/maintenance": heat.edit_window,
        "/hosts/{host}": host.operate,
        "/waiting": waiting.end_wait,
        "/projects": projects.edit,
        "/reservations": reservations.edit,
        "/headroom": headroom.edit,
        "/bus/dead": letters.operate,
        "/moves": moves.stop_drain,
        "/rebalancing": moves.switch_balancing,
        "/moves/{move}": moves.steer,
        "/login": sign_in.sign_in,
        SSO: single_sign_on.accept,
        SSO_PROJECT: single_sign_on.choose,
        "/logout": sign_in.sign_out,
        "/theme": sign_in.theme,
    }
    return [
        *(Route(path, endpoint, methods=["GET"]) for path, endpoint in read.items()),
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in write.items()),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]


async def _health(request: Request) -> Response:
    return PlainTextResponse("well\n")


async def _unknown(request: Request) -> Response:
    raise PageRefused(404, "There is no such page", "The address is wrong, or its subject was deleted.")


async def _wrong_method(request: Request, problem: Exception) -> Response:
    headers = problem.headers if isinstance(problem, HTTPException) else None
    return PlainTextResponse("This page does not support this method.\n", 405, headers=headers)
