"""The web app of the Placement API: authentication and checks before each route."""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, Counter, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bus.clock import monotonic
from bus.errors import Unavailable
from placement_worker.http import allocations, api_call, providers
from placement_worker.http import classes_and_traits as names
from placement_worker.http.access import AccessPolicy, TokenChecker, UncheckedTokens
from placement_worker.http.api_call import (
    LARGE_BODY,
    VERSION_HEADER,
    ApiCall,
    ClientLeft,
    Operation,
    Served,
    delete,
    get,
    negotiated,
    post,
    put,
)
from placement_worker.http.errors import JSON, Problem, bad_request, not_allowed, not_found, takes_json
from placement_worker.http.extension import HttpPart
from placement_worker.http.recording import WRITES, RecordedRequests
from placement_worker.transactions import Batched
from placement_worker.worker import Placement

# Routes for all microversions: versions, health and metrics.


async def versions(call: api_call.ApiCall) -> api_call.ApiAnswer:
    """Answer GET /: the versions of the API."""
    version = {
        "id": "v1.0",
        "max_version": api_call.LATEST_VERSION,
        "min_version": api_call.FIRST_VERSION,
        "status": "CURRENT",
        "links": [{"rel": "self", "href": ""}],
    }
    return api_call.json_answer({"versions": [version]})


async def alive(call: api_call.ApiCall) -> api_call.ApiAnswer:
    """Answer the probe of a supervisor: the process runs."""
    return api_call.json_answer({"status": "alive"})


async def ready(call: api_call.ApiCall) -> api_call.ApiAnswer:
    """Answer the readiness check: ready if the database answers and the index is complete, unless the process
    is being stopped.
    """
    if call.closing.is_set():
        raise Problem(503, "it is being stopped")
    await call.placement.memory.fresh()
    return api_call.json_answer({"status": "ready", "seen": call.placement.memory.index.seen})


async def metrics(call: api_call.ApiCall) -> api_call.ApiAnswer:
    """Answer GET /metrics for Prometheus."""
    return api_call.ApiAnswer(body=generate_latest(), kind=CONTENT_TYPE_LATEST)


# The routes of the Placement API: methods, versions, policy rules and handlers of each URL pattern.


_PROVIDER = "/resource_providers/{uuid}"
_OF = "placement:resource_providers"


# URL patterns are matched in this order, so the most frequent ones come first.
_ROUTES: Mapping[str, tuple[Operation, ...]] = {
    "/allocations/{consumer}": (
        put("placement:allocations:update", allocations.put),
        get("placement:allocations:list", allocations.of_consumer),
        delete("placement:allocations:delete", allocations.delete),
    ),
    "/allocation_candidates": (get("placement:allocation_candidates:list", allocations.list_all, since=10),),
    "/allocations": (post("placement:allocations:manage", allocations.post, since=13, body=LARGE_BODY),),
    "/resource_providers": (get(f"{_OF}:list", providers.list_all), post(f"{_OF}:create", providers.create)),
    _PROVIDER: (
        get(f"{_OF}:show", providers.show),
        put(f"{_OF}:update", providers.update, of_provider=True),
        delete(f"{_OF}:delete", providers.delete),
    ),
    f"{_PROVIDER}/inventories": (
        get(f"{_OF}:inventories:list", providers.inventories),
        put(f"{_OF}:inventories:update", providers.set_inventories, of_provider=True),
        post(f"{_OF}:inventories:create", providers.add_inventory, of_provider=True),
        delete(f"{_OF}:inventories:delete", providers.delete_inventories, since=5, before=405),
    ),
    f"{_PROVIDER}/inventories/{{resource_class}}": (
        get(f"{_OF}:inventories:show", providers.inventory),
        put(f"{_OF}:inventories:update", providers.set_inventory, of_provider=True),
        delete(f"{_OF}:inventories:delete", providers.delete_inventory),
    ),
    f"{_PROVIDER}/usages": (get(f"{_OF}:usages", providers.usages),),
    f"{_PROVIDER}/aggregates": (
        get(f"{_OF}:aggregates:list", providers.aggregates, since=1),
        put(f"{_OF}:aggregates:update", providers.set_aggregates, since=1, of_provider=True),
    ),
    f"{_PROVIDER}/traits": (
        get(f"{_OF}:traits:list", providers.traits, since=6),
        put(f"{_OF}:traits:update", providers.set_traits, since=6),
        delete(f"{_OF}:traits:delete", providers.delete_traits, since=6),
    ),
    f"{_PROVIDER}/allocations": (get(f"{_OF}:allocations:list", allocations.of_provider),),
    "/resource_classes": (
        get("placement:resource_classes:list", names.classes, since=2),
        post("placement:resource_classes:create", names.create_class, since=2),
    ),
    "/resource_classes/{name}": (
        get("placement:resource_classes:show", names.show_class, since=2),
        put("placement:resource_classes:update", names.rename_class, since=2, until=6),
        put("placement:resource_classes:update", names.ensure_class, since=7, body=0),
        delete("placement:resource_classes:delete", partial(names.delete, "resource class"), since=2),
    ),
    "/traits": (get("placement:traits:list", names.traits, since=6),),
    "/traits/{name}": (
        get("placement:traits:show", names.show_trait, since=6, json=False),
        put("placement:traits:update", names.ensure_trait, since=6, body=0),
        delete("placement:traits:delete", partial(names.delete, "trait"), since=6),
    ),
    "/usages": (get("placement:usages", allocations.usages, since=9, target=lambda call: dict(call.pairs)),),
    "/reshaper": (post("placement:reshaper:reshape", allocations.reshape, since=30, body=LARGE_BODY),),
    "/": (get("", versions, json=False),),
    "/healthz": (get("", alive, json=False),),
    "/readyz": (get("", ready, json=False),),
    "/metrics": (get("", metrics, json=False),),
}


def routes(parts: Sequence[HttpPart] = ()) -> Mapping[str, tuple[Operation, ...]]:
    """Return the operations of each URL pattern, with those of features."""
    added = {pattern: operations for part in parts for pattern, operations in part.routes.items()}
    return {**_ROUTES, **added}


CALL = "berth.call"  # key of the ApiCall in the ASGI scope of a request


class Resource:
    """An ASGI application that handles all operations of one URL pattern."""

    def __init__(self, pattern: str, options: "Options", operations: Sequence[Operation]) -> None:
        self.pattern = pattern
        self._policy = options.policy
        self._records = options.records is not None
        self.operations = operations
        self._offered: dict[str, list[Operation]] = {}
        for operation in operations:
            self._offered.setdefault(operation.method, []).append(operation)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: api_call.ApiCall = scope[CALL]
        call.path, call.pattern = scope["path_params"], self.pattern
        operation = self._chosen(call)
        call.rule = operation.rule
        self._check(operation, call)
        before = await self._state(call)
        try:
            answer = await operation.handler(call)
        except Problem as problem:
            if operation.of_provider and problem.status == 400:
                await providers.provider_of(call)
            raise
        if isinstance(answer, Response):  # a streaming response
            call.status = answer.status_code
            await answer(scope, receive, send)
        else:
            if before is not None:
                call.before, call.after = before, await self._state(call)
            await call.send(answer, send)

    async def _state(self, call: api_call.ApiCall) -> Any:
        """Return, for the audit trail, the object that a request changes, as a GET of the same URL answers;
        {} if there is no object yet.

        Return None unless the request changes one object. Also return None for providers (their edits return
        the state before and after) and for allocations, which change too often.
        """
        if not self._records or call.method not in WRITES or "{" not in self.pattern:
            return None
        if "GET" not in self._offered or self.pattern.startswith(("/allocations", "/resource_providers")):
            return None
        reading = copy(call)
        reading.method, reading.minor = "GET", api_call.LATEST_MINOR
        try:
            answer = await self._chosen(reading).handler(reading)
        except Problem:  # the object does not exist
            return {}
        except Unavailable:  # not raised: the change may have succeeded
            return None
        return msgspec.json.decode(answer.body or b"{}") if isinstance(answer, api_call.ApiAnswer) else None

    def _chosen(self, call: api_call.ApiCall) -> Operation:
        if call.method not in self._offered:
            why = "The method specified is not allowed for this resource."
            raise not_allowed(call.method, why, self._offered)
        offered = self._offered[call.method]
        for operation in offered:
            if operation.since <= call.minor <= operation.until:
                return operation
        raise not_allowed(call.method) if offered[0].before == 405 else not_found()

    def _check(self, operation: Operation, call: api_call.ApiCall) -> None:
        if operation.method == "GET" and operation.json and not takes_json(call.accept):
            raise Problem(406, f"Only {JSON} is provided")
        if operation.body:
            kind = call.headers.get("content-type", "None").partition(";")[0].strip()
            if kind.lower() != JSON:
                raise Problem(
                    415,
                    f"The media type {kind} is not supported, use {JSON}",
                    general=f"The request media type {kind} is not supported by this server.",
                )
            if int(call.headers.get("content-length", 0)) > operation.body:
                raise api_call.too_large(operation.body)
            call.limit = operation.body
        if operation.rule and not self._policy.allows(operation.rule, call.identity, operation.target(call)):
            raise Problem(403, f"Policy does not allow {operation.rule} to be performed.")


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
    """Count an HTTP request in the metrics by its URL pattern, not its URL, so that clients cannot add
    series."""
    requests, histogram = _series(method if method in _METHODS else "other", route, status)
    requests.inc()
    histogram.observe(seconds)


@cache
def _series(method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    return _REQUESTS.labels(method, route, str(status)), _SECONDS.labels(method, route)


log = logging.getLogger(__name__)

LONGEST_LENGTH = 18  # maximum number of digits of a Content-Length


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the API is served: who may do what, which origins may call, what features add, what is recorded."""

    tokens: TokenChecker = field(default_factory=UncheckedTokens)
    policy: AccessPolicy = field(default_factory=AccessPolicy)
    origins: tuple[str, ...] = ()  # origins permitted by CORS
    parts: Sequence[HttpPart] = ()  # of features
    records: RecordedRequests | None = None  # records for the audit trail; None: requests are not recorded


def http_app(placement: Placement, options: Options | None = None) -> Starlette:
    """Return the web app of the Placement API; if `app.state.closing` is set, its streams end."""
    options = options or Options()
    claims, releases = Batched(placement.claims.claim_many), Batched(placement.claims.release_many)
    edits = Batched(placement.providers.edit_many)
    served = Served(placement, claims, releases, edits, asyncio.Event())
    operations = routes(options.parts)
    needs_no_token = {pattern for pattern, each in operations.items() if not any(one.rule for one in each)}

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            serving = [group.create_task(batcher.run()) for batcher in (claims, releases, served.edits)]
            yield
            for task in serving:
                task.cancel()

    middleware = [Middleware(_Entry, options, served, needs_no_token)]
    if origins := options.origins:
        shared: dict[str, Any] = {"allow_origins": origins, "allow_methods": _MAY_ASK, "max_age": _ASKED_FOR}
        shared |= {"allow_headers": ("*",), "expose_headers": _MAY_READ}
        middleware.insert(0, Middleware(_Pages, **shared))
    app = Starlette(
        routes=[
            Route(pattern, Resource(pattern, options, of_pattern))
            for pattern, of_pattern in operations.items()
        ],
        middleware=middleware,
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.router.default = _nowhere
    app.state.closing = served.closing
    return app


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    raise not_found()


_MAY_ASK = ("GET", "PUT", "POST", "PATCH", "DELETE")
_MAY_READ = (
    "etag", "location", "openstack-api-version", "x-openstack-request-id", "berth-why",
    "berth-candidates-cut",
)  # fmt: skip
_ASKED_FOR = 3600  # seconds for which a browser may cache the answer to a CORS preflight request


class _Pages(CORSMiddleware):
    def preflight_response(self, request_headers: Headers) -> Response:
        """Answer a CORS preflight request. For a forbidden origin, the answer lacks the headers that permit
        requests.
        """
        if not self.is_allowed_origin(request_headers["origin"]):
            return Response()
        return super().preflight_response(request_headers)


class _Entry:
    """The outermost ASGI application: authenticates an HTTP request, reads its microversion, checks its
    length, and passes it to its route."""

    def __init__(
        self, app: ASGIApp, options: Options, served: Served, needs_no_token: Collection[str]
    ) -> None:
        self._app = app
        self._options = options
        self._served = served
        self._needs_no_token = needs_no_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, why = monotonic(), ""
        call = scope[CALL] = ApiCall(scope, receive, self._served)
        try:
            try:
                await self._enter(call, scope, receive, send)
            except Problem as problem:
                why = problem.why
                await call.refuse(problem, send)
            except Unavailable as problem:
                why = str(problem)
                await call.refuse(Problem(503, str(problem), headers={"retry-after": "1"}), send)
        except ClientLeft:
            pass
        except Exception:
            log.exception("%s: %s %s failed", call.id, call.method, scope["path"])
            await call.refuse(Problem(500), send)
        count(call.method, call.pattern, call.status, monotonic() - began)
        if self._options.records is not None:
            self._options.records.add(call, why)
        log.debug("%s: %s %s: %d", call.id, call.method, scope["path"], call.status)

    async def _enter(self, call: ApiCall, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in self._needs_no_token:
            call.identity = await self._options.tokens.caller(call.headers)
        call.minor = negotiated(call.headers.get(VERSION_HEADER, ""))
        length = call.headers.get("content-length")
        if length:
            if not (length.isascii() and length.isdigit()):
                raise bad_request("content-length header must be an integer")
            if len(length) > LONGEST_LENGTH:
                raise Problem(413, "No body may be that long.", headers={"connection": "close"})
            if int(length) and "content-type" not in call.headers:
                raise bad_request("content-type header required when content-length > 0")
        if "\0" in scope["path"]:  # databases cannot store U+0000, so no object has this name
            raise not_found()
        await self._app(scope, receive, send)
