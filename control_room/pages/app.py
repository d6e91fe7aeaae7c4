"""Maps the URLs of the control room to its pages."""

from collections.abc import Awaitable, Callable, Iterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from control_room.kit.frame import HERE, PageContext, PageRefused, Renderer
from control_room.pages.audit import AuditPages
from control_room.pages.builds import BuildPages
from control_room.pages.bus import BusPages, DeadLetterPages
from control_room.pages.hosts import HeatPages, HostPages, MetalPages
from control_room.pages.middleware import SSO, SSO_PROJECT, SSO_START, AccessMiddleware, SignInPages
from control_room.pages.now import NowPages
from control_room.pages.single_sign_on import SingleSignOnPages

Endpoint = Callable[[Request], Awaitable[Response]]


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


def _routes(context: PageContext, renderer: Renderer) -> Iterator[BaseRoute]:
    now = NowPages(context, renderer)
    bus, letters = BusPages(context, renderer), DeadLetterPages(context, renderer)
    yield _get("/", now.page)
    yield _get("/now/events", now.events)
    yield from _routes_of_hosts(context, renderer)
    yield from _routes_of_instances(context, renderer)
    for added in renderer.added:
        yield from added.routes
    yield _get("/bus", bus.page)
    yield _get("/bus/events", bus.events)
    yield _get("/bus/dead", letters.page)
    yield _post("/bus/dead", letters.operate)
    yield _get("/bus/letter", letters.letter)
    yield from _routes_of_users(context, renderer)
    yield _get("/healthz", _health)
    yield Mount("/static", StaticFiles(directory=HERE / "static"))


def _routes_of_hosts(context: PageContext, renderer: Renderer) -> Iterator[Route]:
    heat, host = HeatPages(context, renderer), HostPages(context, renderer)
    metal = MetalPages(context, renderer)
    yield _get("/hosts", heat.page)
    yield _get("/hosts.json", heat.data)
    yield _get("/hosts/events", heat.events)
    yield _get("/hosts/{host}", host.page)
    yield _post("/hosts/{host}", host.operate)
    yield _get("/metal", metal.page)
    yield _get("/metal/events", metal.events)


def _routes_of_instances(context: PageContext, renderer: Renderer) -> Iterator[Route]:
    builds = BuildPages(context, renderer)
    yield _get("/builds", builds.list_all)
    yield _get("/builds/events", builds.events)
    yield _get("/builds/{build}", builds.page)


def _routes_of_users(context: PageContext, renderer: Renderer) -> Iterator[Route]:
    audit, sign_in = AuditPages(context, renderer), SignInPages(context, renderer)
    single_sign_on = SingleSignOnPages(context, renderer, sign_in)
    yield _get("/audit", audit.page)
    yield _get("/audit.json", audit.export)
    yield _get("/login", sign_in.page)
    yield _post("/login", sign_in.sign_in)
    yield _get(SSO_START, single_sign_on.start)
    yield _post(SSO, single_sign_on.accept)
    yield _post(SSO_PROJECT, single_sign_on.choose)
    yield _post("/logout", sign_in.sign_out)
    yield _post("/theme", sign_in.theme)


def _get(path: str, endpoint: Endpoint) -> Route:
    return Route(path, endpoint, methods=["GET"])


def _post(path: str, endpoint: Endpoint) -> Route:
    return Route(path, endpoint, methods=["POST"])


async def _health(request: Request) -> Response:
    return PlainTextResponse("well\n")


async def _unknown(request: Request) -> Response:
    raise PageRefused(404, "There is no such page", "The address is wrong, or its subject was deleted.")


async def _wrong_method(request: Request, problem: Exception) -> Response:
    headers = problem.headers if isinstance(problem, HTTPException) else None
    return PlainTextResponse("This page does not support this method.\n", 405, headers=headers)
