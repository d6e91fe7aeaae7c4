"""The classes that pass a Placement API request to its handler, and the handler's answer to the client.

The request's microversion has the major version 1; only its minor version is stored.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bus.claims import ClaimAnswered, ClaimRequested, ReleaseAnswered, ReleaseRequested
from bus.errors import Undecodable
from bus.names import Named
from bus.reading import read
from bus.resources import Consumer, Edit, EditAnswered, Edited, EditRequested, EditResult, Provider
from placement_worker.http.access import Identity
from placement_worker.http.errors import JSON, Problem, bad_request
from placement_worker.http.queries import Pairs, pairs_of
from placement_worker.http.schemas import Schema
from placement_worker.transactions import Batched
from placement_worker.worker import Placement

VERSION_HEADER = "openstack-api-version"
SERVICE = "placement"
LATEST_MINOR = 39
FIRST_VERSION, LATEST_VERSION = "1.0", f"1.{LATEST_MINOR}"

_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})", re.ASCII)


def negotiated(header: str) -> int:
    """Return the minor version in a microversion header, which may name several services; 0 if it does not
    name placement.
    """
    asked = ""
    for part in header.split(","):
        service, _, version = part.strip().partition(" ")
        if service.lower() == SERVICE:
            asked = version.strip()
    if not asked:
        return 0
    if asked == "latest":
        return LATEST_MINOR
    form = _VERSION.fullmatch(asked)
    if form is None:
        raise bad_request(f"Invalid microversion: invalid version string: {asked}")
    major, minor = int(form[1]), int(form[2])
    if major != 1 or minor > LATEST_MINOR:
        raise Problem(
            406,
            f"Invalid microversion: Unacceptable version header: {asked}",
            more={"max_version": LATEST_VERSION, "min_version": FIRST_VERSION},
        )
    return minor


T = TypeVar("T", bound=msgspec.Struct)

CACHED_SINCE = 15
NOBODY = Identity("", "", frozenset())

encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class ApiAnswer:
    """A handler's answer to an API request. `updated` is the time in the header Last-Modified (0: the present
    time; None: no such header).
    """

    status: int = 200
    body: bytes | None = None
    updated: float | None = None
    dated: bool = True  # False: without Last-Modified, such as for an empty collection
    headers: dict[str, str] = field(default_factory=dict)
    kind: str = JSON


def json_answer(value: Any, updated: float = 0.0, **more: Any) -> ApiAnswer:
    """Return a JSON answer; `updated` becomes its header Last-Modified."""
    return ApiAnswer(body=encode(value), updated=updated, **more)


def empty_answer(status: int = 204, **headers: str) -> ApiAnswer:
    """Return an answer without a body."""
    return ApiAnswer(status, headers=headers)


def last_change(records: Iterable[Provider | Named | Consumer]) -> float:
    """Return the time of the latest change of any of the given records (seconds since 1970); 0.0 without
    records.
    """
    return max((record.updated for record in records), default=0.0)


Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Served:
    """The placement operations for HTTP requests: concurrent edits, claims and releases share transactions.
    Once `closing` is set, the readiness check fails, and streams end.
    """

    placement: Placement
    claims: Batched[ClaimRequested, ClaimAnswered]
    releases: Batched[ReleaseRequested, ReleaseAnswered]
    edits: Batched[EditRequested, EditAnswered]
    closing: asyncio.Event


class ApiCall:
    """An API request as its handler sees it. `minor` is the requested minor version; -1 until it is known."""

    def __init__(self, scope: Scope, receive: Receive, served: Served) -> None:
        self.scope = scope
        self._receive = receive
        self.placement = served.placement
        self.claim, self.release, self.edits = served.claims, served.releases, served.edits
        self.closing = served.closing
        self.method: str = scope["method"]
        self.pattern = ""  # URL pattern of the route; empty: no route has this URL
        self.path: Mapping[str, str] = {}  # fields of the URL pattern with their values
        self.headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            self.headers[key] = f"{self.headers[key]},{text}" if key in self.headers else text
        self.accept = self.headers.get("accept", "")
        self.query: bytes = scope["query_string"]
        self.id = f"req-{served.placement.clock.uuid()}"
        self.minor = -1
        self.identity = NOBODY
        self.limit = 0  # maximum size of the body in bytes
        self.status = 0  # HTTP status of the response; 0 until the response begins
        self.rule = ""  # policy rule of the operation
        # For the audit trail: the request's body, and the state of the URL's object before and after.
        self.asked = b""
        self.before: Any = None
        self.after: Any = None

    @property
    def pairs(self) -> Pairs:
        """Return the query parameters in their order."""
        return pairs_of(self.query)

    @property
    def mount(self) -> str:
        """Return the path below which the API is mounted."""
        return str(self.scope.get("root_path", ""))

    def location(self, path: str) -> str:
        """Return the full URL of a path, by the host name that the client used."""
        host, port = self.scope.get("server") or ("localhost", None)
        named = self.headers.get("host") or (f"{host}:{port}" if port else host)
        return f"{self.scope['scheme']}://{named}{self.mount}{path}"

    async def edit(self, edit: Edit) -> EditResult:
        """Execute an edit; the states before and after it become part of the audit record."""
        result = (await self.edits(EditRequested(edit=edit))).result
        if isinstance(result, Edited):
            self.before, self.after = result.before or {}, result.provider or {}
        return result

    async def body(self) -> bytes:
        """Read the body; refuse one above the limit."""
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            part: bytes = message.get("body", b"")
            size, more = size + len(part), message.get("more_body", False)
            if size > self.limit:
                raise too_large(self.limit)
            parts.append(part)
        self.asked = parts[0] if len(parts) == 1 else b"".join(parts)
        return self.asked

    async def json(self, schema: Schema) -> Any:
        """Read the body; refuse one that does not conform to the schema."""
        return schema.read(await self.body())

    async def decoded(self, kind: type[T]) -> T:
        """Return the HTTP request's JSON body as a value of this type; if the body is not valid, raise the
        API error 400.
        """
        try:
            return read(kind, await self.body(), most=self.limit)
        except Undecodable as problem:
            raise bad_request(str(problem)) from None

    async def send(self, answer: ApiAnswer, send: Send) -> None:
        """Send an answer with the common headers and those for caches."""
        headers, body = self.common_headers(), answer.body or b""
        if answer.updated is not None and self.minor >= CACHED_SINCE:
            headers.append((b"cache-control", b"no-cache"))
            if answer.dated:
                moment = formatdate(answer.updated or self.placement.clock.now(), usegmt=True)
                headers.append((b"last-modified", moment.encode()))
        for name, value in answer.headers.items():  # names of hosts can contain control characters
            text = "".join(sign if sign.isprintable() else " " for sign in value)
            headers.append((name.encode(), text.encode("latin-1", "replace")))
        status = answer.status
        if status == 200 and self.method == "GET":
            tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            headers.append((b"etag", tag.encode()))
            known = self.headers.get("if-none-match", "").split(",")
            if any(each.strip().removeprefix("W/") in (tag, "*") for each in known):  # weak comparison
                status, body = 304, b""
        if status not in (204, 304):
            headers.append((b"content-length", str(len(body)).encode()))
            if body:
                headers.append((b"content-type", answer.kind.encode()))
        self.status = status
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def refuse(self, problem: Problem, send: Send) -> None:
        """Send the HTTP response for a refused request, unless another response has started."""
        if not self.status:
            kind, body = problem.rendered(self.accept, self.id, self.minor)
            await self.send(ApiAnswer(problem.status, body, headers=problem.headers, kind=kind), send)

    def common_headers(self) -> Headers:
        """Return the headers of every answer: request id and, from a known version on, the version of the
        API.
        """
        headers = [(b"x-openstack-request-id", self.id.encode())]
        if self.minor >= 0:
            headers.append((b"openstack-api-version", f"{SERVICE} 1.{self.minor}".encode()))
            headers.append((b"vary", VERSION_HEADER.encode()))
        return headers


class ClientLeft(Exception):
    """The error that the client disconnected before its request was complete."""


def too_large(limit: int) -> Problem:
    return Problem(413, f"The body may have {limit} bytes.", headers={"connection": "close"})


# An operation of the HTTP API: a method of a URL pattern, with its versions, policy rule and handler.


Handler = Callable[[ApiCall], Awaitable[ApiAnswer | Response]]

BODY = 1 << 20  # bytes
LARGE_BODY = 4 << 20


@dataclass(frozen=True)
class Operation:
    """An operation of the API: who may use it, what answers it, and in which versions it exists."""

    method: str
    rule: str  # policy rule; empty: no permission, and no token, is needed
    handler: Handler
    since: int = 0  # first minor version with this operation
    until: int = LATEST_MINOR
    before: int = 404  # HTTP status for older minor versions
    body: int = 0  # maximum size of the JSON body in bytes; 0: no body
    json: bool = True  # for GET: refuse clients that do not accept JSON
    of_provider: bool = False  # if the provider is missing, answer 404 even if the body is invalid
    # returns the attributes of the request for the policy rule
    target: Callable[[ApiCall], Mapping[str, str]] = lambda call: {}

    @property
    def ends(self) -> bool:
        """Return whether a later microversion of the API removed this operation."""
        return self.until < LATEST_MINOR


get = partial(Operation, "GET")
put = partial(Operation, "PUT", body=BODY)
post = partial(Operation, "POST", body=BODY)
patch = partial(Operation, "PATCH", body=BODY)
delete = partial(Operation, "DELETE")
