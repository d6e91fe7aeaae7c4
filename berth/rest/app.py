"""The web app of the REST API: authenticates requests, calls the operations, and formats responses."""

import logging
from collections.abc import AsyncIterator, Mapping
from functools import cache, partial
from importlib.resources import files
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from berth.features import added
from berth.kit.http_descriptions import OperationKey
from berth.kit.publishing import checked
from berth.kit.rest import RestPart
from berth.kit.times import seconds_since
from berth.rest.bodies import BatchRequested
from berth.rest.call import Call, Handler, RestAccess, answer
from berth.rest.callers import NotFound, RestCaller
from berth.rest.ends import Expired
from berth.rest.openapi import ADDRESS, operations, rest_document
from berth.rest.operations import ANY_CELL, RestOperations
from berth.rest.store import IdTaken
from berth.settings import BadSetting
from bus import parts
from bus.clock import set_within
from bus.delivery.recording import Caller
from bus.errors import AnswerRefused, TooBig, Unavailable, Undecodable, Unroutable
from bus.http import LongRequests, TooManyRequests, origin_of
from bus.messages import BuildRequested
from bus.projects import NotAllowed
from bus.queries import FindInstances
from placement_worker.http.errors import Problem

log = logging.getLogger(__name__)

BEAT_SECONDS = 15.0  # between comments that keep a stream of events open, and between checks of its token
STREAMS = 50  # streams of events of one user at the same time
WAITS = 1000  # requests of one user that wait at the same time: half of the connections

_encode = parts.encoder().encode
_STATUSES: Mapping[type[Exception], int] = {
    BadSetting: 400,
    Undecodable: 400,
    AnswerRefused: 400,
    TooBig: 413,
    NotAllowed: 403,
    NotFound: 404,
    IdTaken: 409,
    Expired: 410,
    TooManyRequests: 429,
    Unavailable: 503,
    Unroutable: 503,
}

_REFUSALS: tuple[type[Exception], ...] = (Problem, *_STATUSES)


async def boot(call: Call) -> Response:
    """Answer POST /v1/requests."""
    accepted = await call.operations.boot(call.caller, [await call.body(BuildRequested)])
    return answer(accepted.accepted[0], 202)


async def boot_batch(call: Call) -> Response:
    """Answer POST /v1/requests/batch: all requests are accepted, or none."""
    return answer(await call.operations.boot(call.caller, (await call.body(BatchRequested)).requests), 202)


async def show_request(call: Call) -> Response:
    """Answer GET /v1/requests/ID, when the request has ended or the time to wait has passed."""
    with call.waiting():
        return answer(await call.operations.request(call.caller, call.id, call.wait))


async def list_builds(call: Call) -> Response:
    """Answer GET /v1/builds."""
    asked = call.asked
    given: dict[str, Any] = {
        name: asked[name] for name in ("project", "host", "name", "after") if name in asked
    }
    if "since" in asked:
        given["since"] = call.operations.bus.clock.now() - seconds_since(asked["since"])
    if "status" in asked:
        given["statuses"] = tuple(asked["status"].split(","))
    if (limit := call.number("limit", asked.get("limit"))) is not None:
        given["limit"] = limit
    question = checked(FindInstances(cell=asked.get("cell", ANY_CELL), **given))
    return answer(await call.operations.builds(call.caller, question))


async def show_build(call: Call) -> Response:
    return answer(await call.operations.build(call.caller, call.id))


async def delete_build(call: Call) -> Response:
    return answer(await call.operations.delete(call.caller, call.id), 202)


async def list_events(call: Call) -> Response:
    """Answer GET /v1/events: ends after a number; wait for the next one if there is none."""
    asked = call.asked
    after = call.number("after", asked.get("after"))
    with call.waiting():
        return answer(await call.operations.events(call.caller, asked.get("project", ""), after, call.wait))


async def list_problems(call: Call) -> Response:
    return answer(await call.operations.problems(call.caller))


async def stream_events(call: Call) -> Response:
    """Answer GET /v1/events/stream as server-sent events, from the last received number on."""
    asked = call.asked
    project = call.caller.reading(asked.get("project", ""))
    call.streams.check(call.user)
    after = call.request.headers.get("last-event-id") or asked.get("after")
    last = await call.operations.ends.checked(call.number("after", after))
    return EventSourceResponse(
        _stream(call, project, last), ping=BEAT_SECONDS, ping_message_factory=_beat, sep="\n"
    )


async def _stream(call: Call, project: str, last: int) -> AsyncIterator[bytes]:
    """Yield the project's events after the number `last` as server-sent events; a revoked token ends them."""
    yield _beat().encode()  # the client sees immediately that the stream works
    clock = call.operations.bus.clock
    judged = clock.monotonic()
    with call.streams.counted(call.user), call.operations.ends.watching(project) as changed:
        while not call.operations.ends.is_closed:
            changed.clear()
            try:
                if clock.monotonic() - judged >= BEAT_SECONDS:
                    (await call.access.caller(call.request)).reading(project)
                    judged = clock.monotonic()
                found = await call.operations.ends.after(last, project)
            except _REFUSALS:
                return  # the client reconnects with the last number that it received, and receives the reason
            if found:
                last = found[-1].number
                yield b"".join(
                    ServerSentEvent(end.body, event=end.event, id=str(end.number), sep="\n").encode()
                    for end in found
                )
            else:
                await set_within(changed, BEAT_SECONDS)


def _beat() -> ServerSentEvent:
    return ServerSentEvent(comment="berth", sep="\n")


_HANDLERS: Mapping[OperationKey, Handler] = {
    ("/v1/requests", "POST"): boot,
    ("/v1/requests/batch", "POST"): boot_batch,
    ("/v1/requests/{id}", "GET"): show_request,
    ("/v1/builds", "GET"): list_builds,
    ("/v1/builds/{id}", "GET"): show_build,
    ("/v1/builds/{id}", "DELETE"): delete_build,
    ("/v1/events", "GET"): list_events,
    ("/v1/events/stream", "GET"): stream_events,
    ("/v1/problems", "GET"): list_problems,
}


def handlers() -> dict[OperationKey, Handler]:
    """Return the handlers of all operations, also of those that features add."""
    of_features = {
        key: each.handler for part in added(RestPart, "rest") for key, each in part.operations.items()
    }
    return {**_HANDLERS, **of_features}


def rest_app(rest: RestOperations, access: RestAccess) -> Starlette:
    """Return the web app of the REST API."""
    streams, waits = LongRequests(STREAMS, "streams of events"), LongRequests(WAITS, "requests that wait")
    every, described = handlers(), operations()

    async def serve(key: OperationKey, request: Request) -> Response:
        path, method = key
        id_, caller, status, why = f"req-{rest.bus.clock.uuid()}", RestCaller(), 500, ""
        try:
            caller = await access.caller(request)
            call = Call(request, described[key], rest, caller, access, streams, waits)
            response = await every[key](call)
            status = response.status_code
        except _REFUSALS as problem:
            response, why = _refusal(problem, id_), str(problem)
            status = response.status_code
        except ClientDisconnect:
            return Response(status_code=400)
        finally:
            if caller.acts or status == 401:
                came = Caller(
                    operator=caller.operator,
                    interface="rest",
                    through=f"{method} {path}",
                    origin=origin_of(request.scope),
                    request=id_,
                )
                access.record(caller, came, (status, why))
        response.headers["x-openstack-request-id"] = id_
        return response

    async def other(request: Request, problem: Exception) -> Response:
        status = getattr(problem, "status_code", 500)
        if status == 500:
            log.error("%s %s failed", request.method, request.url.path, exc_info=problem)
        id_ = f"req-{rest.bus.clock.uuid()}"
        return _refusal(Problem(status, headers=getattr(problem, "headers", None)), id_)

    app = Starlette(
        routes=[
            *(Route(path, partial(serve, (path, method)), methods=[method]) for path, method in every),
            Route(ADDRESS, _openapi),
            Route("/", _page),
            Route("/healthz", _alive),
        ],
        exception_handlers={Exception: other, 404: other, 405: other},
    )
    app.router.redirect_slashes = False
    return app


def _refusal(problem: Exception, id_: str) -> Response:
    if not isinstance(problem, Problem):
        status = next(status for kind, status in _STATUSES.items() if isinstance(problem, kind))
        again = {"retry-after": "1"} if status in (429, 503) else None
        problem = Problem(status, str(problem), headers=again)
    kind, body = problem.rendered("application/json", id_, -1)
    return Response(body, problem.status, headers=problem.headers, media_type=kind)


async def _openapi(request: Request) -> Response:
    return Response(_document(), media_type="application/json")


@cache
def _document() -> bytes:
    return _encode(rest_document())


async def _page(request: Request) -> Response:
    policy = "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    page = files("berth.rest").joinpath("page.html").read_text(encoding="utf-8")
    return HTMLResponse(page, headers={"content-security-policy": policy})


async def _alive(request: Request) -> Response:
    return JSONResponse({"status": "alive"})
