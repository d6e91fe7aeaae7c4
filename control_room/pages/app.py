"""Maps the URLs of the control room to its pages."""

from collections.abc import Iterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from control_room.kit.frame import HERE, PageContext, PageRefused, Renderer, get, live, post
from control_room.pages.audit import AuditPages
from control_room.pages.builds import BuildPages
from control_room.pages.bus import BusPages, DeadLetterPages
from control_room.pages.find import FindPages
from control_room.pages.hosts import HeatPages, HostPages, MetalPages
from control_room.pages.instances import InstancePages
from control_room.pages.middleware import SSO, SSO_PROJECT, SSO_START, AccessMiddleware, SignInPages
from control_room.pages.now import NowPages
from control_room.pages.single_sign_on import SingleSignOnPages


def pages_app(context: PageContext) -> Starlette:
    """Return the web application with the pages of the kernel and of features."""
    renderer = Renderer(context)
    app = Starlette(
        routes=[*_routes(context, renderer), Route("/{path:path}", _unknown)],
        middleware=[Middleware(AccessMiddleware, context, renderer)],
        exception_handlers={405: _wrong_method},
    )
    app.router.redirect_slashes = False
    app.state.sessions = context.sessions
    return app


def _routes(context: PageContext, renderer: Renderer) -> Iterator[BaseRoute]:
    now = NowPages(context, renderer)
    bus, letters = BusPages(context, renderer), DeadLetterPages(context, renderer)
    yield get("/", now.page)
    yield get("/now/events", now.events)
    yield get("/find", FindPages(context, renderer).page)
    yield from _routes_of_hosts(context, renderer)
    yield from _routes_of_instances(context, renderer)
    for added in renderer.added:
        yield from added.routes
    yield from live("/bus", bus)
    yield get("/bus/dead", letters.page)
    yield post("/bus/dead", letters.operate)
    yield get("/bus/letter", letters.letter)
    yield from _routes_of_users(context, renderer)
    yield get("/healthz", _health)
    yield Mount("/static", StaticFiles(directory=HERE / "static"))


def _routes_of_hosts(context: PageContext, renderer: Renderer) -> Iterator[Route]:
    heat, host = HeatPages(context, renderer), HostPages(context, renderer)
    metal = MetalPages(context, renderer)
    yield get("/hosts", heat.page)
    yield get("/hosts.json", heat.data)
    yield get("/hosts/events", heat.events)
    yield get("/host-table", heat.table)
    yield get("/hosts/{host}", host.page)
    yield post("/hosts/{host}", host.operate)
    yield from live("/metal", metal)


def _routes_of_instances(context: PageContext, renderer: Renderer) -> Iterator[Route]:
    builds = BuildPages(context, renderer)
    yield get("/instances", InstancePages(context, renderer).page)
    yield get("/builds", builds.list_all)
    yield get("/builds/events", builds.events)
    yield get("/builds/{build}", builds.page)


def _routes_of_users(context: PageContext, renderer: Renderer) -> Iterator[Route]:
    audit, sign_in = AuditPages(context, renderer), SignInPages(context, renderer)
    single_sign_on = SingleSignOnPages(context, renderer, sign_in)
    yield get("/audit", audit.page)
    yield get("/audit.json", audit.export)
    yield get("/login", sign_in.page)
    yield post("/login", sign_in.sign_in)
    yield get(SSO_START, single_sign_on.start)
    yield post(SSO, single_sign_on.accept)
    yield post(SSO_PROJECT, single_sign_on.choose)
    yield post("/logout", sign_in.sign_out)
    yield post("/theme", sign_in.theme)


async def _health(request: Request) -> Response:
    return PlainTextResponse("well\n")


async def _unknown(request: Request) -> Response:
    raise PageRefused(404, "There is no such page", "The address is wrong, or its subject was deleted.")


async def _wrong_method(request: Request, problem: Exception) -> Response:
    headers = problem.headers if isinstance(problem, HTTPException) else None
    return PlainTextResponse("This page does not support this method.\n", 405, headers=headers)
