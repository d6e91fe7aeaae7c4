"""The Placement API over HTTP: the steps of every request before its route (identity, version, length,
limits).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from prometheus_client import Counter, Histogram
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bus.clock import Clock, monotonic
from bus.errors import Unavailable
from placement_worker.http.access import AccessPolicy, Authenticate, noauth2
from placement_worker.http.api_call import VERSION_HEADER, ApiCall, ClientLeft, Served, negotiated
from placement_worker.http.errors import Problem, bad_request, not_found
from placement_worker.http.routes import CALL, ROUTES, Resource
from placement_worker.placement import Placement
from placement_worker.transactions import Batched

_REQUESTS = Counter(
    "berth_http_requests", "requests answered, by address pattern and status", ["method", "route", "status"]
)
_SECONDS = Histogram(
    "berth_http_seconds",
    "from a request's head to the end of its answer",
    ["method", "route"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "PUT", "POST", "DELETE", "PATCH"))


def count(method: str, route: str, status: int, seconds: float) -> None:
    """Count a request in the metrics by its route's pattern, so that clients cannot create metric series."""
    requests, histogram = _series(method if method in _METHODS else "other", route, status)
    requests.inc()
    histogram.observe(seconds)


@cache
def _series(method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    return _REQUESTS.labels(method, route, str(status)), _SECONDS.labels(method, route)


log = logging.getLogger(__name__)

LONGEST_LENGTH = 18  # digits of a content-length
OPEN = frozenset(("/", "/healthz", "/readyz", "/metrics"))  # what needs no token


@dataclass(frozen=True, kw_only=True)
class Options:
    authenticate: Authenticate = noauth2
    policy: AccessPolicy = field(default_factory=AccessPolicy)
    origins: tuple[str, ...] = ()  # origins permitted by CORS


def http_app(placement: Placement, options: Options | None = None) -> Starlette:
    """Return the Placement API as a web app; setting `app.state.closing` ends its endless responses."""
    options = options or Options()
    claims, releases = Batched(placement.claims.claim_many), Batched(placement.claims.release_many)
    served = Served(placement, claims, releases, Batched(placement.providers.edit_many), asyncio.Event())

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            serving = [group.create_task(one.run()) for one in (claims, releases, served.edits)]
            yield
            for task in serving:
                task.cancel()

    middleware = [Middleware(_Entry, options, served)]
    if origins := options.origins:
        shared: dict[str, Any] = {"allow_origins": origins, "allow_methods": _MAY_ASK, "max_age": _ASKED_FOR}
        shared |= {"allow_headers": ("*",), "expose_headers": _MAY_READ}
        middleware.insert(0, Middleware(_Pages, **shared))
    app = Starlette(
        routes=[
            Route(pattern, Resource(pattern, options.policy, operations))
            for pattern, operations in ROUTES.items()
        ],
        middleware=middleware,
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.router.default = _nowhere
    app.state.closing = served.closing
    return app


def tell_refusal(status: int, why: str, accept: str) -> tuple[Mapping[str, str], bytes]:
    """Return a refusal of malformed or oversized HTTP in the API's error format."""
    if "Content-Length" in why:
        why = "content-length header must be an integer"
    id_ = f"req-{Clock().uuid()}"
    kind, body = Problem(status, why).rendered(accept, id_, -1)
    return {"content-type": kind, "x-openstack-request-id": id_}, body


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    raise not_found()


_MAY_ASK = ("GET", "PUT", "POST", "PATCH", "DELETE")
_MAY_READ = (
    "etag", "location", "openstack-api-version", "x-openstack-request-id", "berth-why",
    "berth-candidates-cut",
)  # fmt: skip
_ASKED_FOR = 3600  # seconds a browser may remember whether it may ask


class _Pages(CORSMiddleware):
    def preflight_response(self, request_headers: Headers) -> Response:
        """Answer a CORS preflight request; a forbidden origin gets an answer without permission."""
        if not self.is_allowed_origin(request_headers["origin"]):
            return Response()
        return super().preflight_response(request_headers)


class _Entry:
    """The outermost application: request id, identity, version, length, then the route."""

    def __init__(self, app: ASGIApp, options: Options, served: Served) -> None:
        self._app = app
        self._authenticate = options.authenticate
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = monotonic()
        call = scope[CALL] = ApiCall(scope, receive, self._served)
        try:
            try:
                await self._enter(call, scope, receive, send)
            except Problem as problem:
                await call.refuse(problem, send)
            except Unavailable as problem:
                await call.refuse(Problem(503, str(problem), headers={"retry-after": "1"}), send)
        except ClientLeft:
            pass
        except Exception:
            log.exception("%s: %s %s failed", call.id, call.method, scope["path"])
            await call.refuse(Problem(500), send)
        count(call.method, call.pattern, call.status, monotonic() - began)
        log.debug("%s: %s %s: %d", call.id, call.method, scope["path"], call.status)

    async def _enter(self, call: ApiCall, scope: Scope, receive: Receive, send: Send) -> None:
        who = self._authenticate(call.headers)
        if who is not None:
            call.who = who
        elif scope["path"] not in OPEN:
            raise Problem(401, "A valid token is required.", headers={"www-authenticate": "Token"})
        call.minor = negotiated(call.headers.get(VERSION_HEADER, ""))
        length = call.headers.get("content-length")
        if length:
            if not (length.isascii() and length.isdigit()):
                raise bad_request("content-length header must be an integer")
            if len(length) > LONGEST_LENGTH:
                raise Problem(413, "No body may be that long.", headers={"connection": "close"})
            if int(length) and "content-type" not in call.headers:
                raise bad_request("content-type header required when content-length > 0")
        if "\0" in scope["path"]:  # no database takes it, and nothing is called so
            raise not_found()
        await self._app(scope, receive, send)
