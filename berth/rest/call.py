"""A request to the REST API as the handlers of its operations receive it."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from berth.kit.http_descriptions import DescribedOperation
from berth.rest.callers import RestCaller, combined, rest_caller
from berth.rest.operations import RestOperations
from berth.settings import BadSetting
from bus import parts, protocol
from bus.acts import Target
from bus.delivery.recording import Caller
from bus.errors import TooBig
from bus.http import LongRequests
from bus.reading import read
from bus.vocabulary import Id, Message
from placement_worker.http.access import TokenChecker
from placement_worker.http.recording import SIGN_IN, RecordedRequests

MOST_WAIT = 300.0  # seconds of a long poll
LONGEST_BODY = protocol.MAX_MESSAGE_BYTES

M = TypeVar("M", bound=Message)
_encode = parts.encoder().encode
_id = msgspec.json.Decoder(Id).decode


@dataclass(frozen=True)
class RestAccess:
    """Authenticates requests to the REST API, and records their acts in the audit trail. The access policy
    gives the roles of callers.
    """

    tokens: TokenChecker
    records: RecordedRequests

    async def caller(self, request: Request) -> RestCaller:
        """Return the caller that the token of the request identifies."""
        identity = await self.tokens.caller(request.headers)
        return rest_caller(self.records.policy, identity, self.records.known_by)

    def record(self, caller: RestCaller, came: Caller, response: tuple[int, str]) -> None:
        """Record the acts of a request with the status and reason of the response. `came`: the caller, as the
        audit trail stores it.
        """
        if response[0] == 401:
            self.records.put(came, SIGN_IN, Target(), response)
        for noted in combined(caller.acts):
            shown = (403, response[1]) if noted.is_denied else response
            self.records.put(came, noted.act.name, noted.target, shown, asked=noted.asked)


@dataclass(frozen=True)
class Call:
    """A request to the REST API, with its caller."""

    request: Request
    operation: DescribedOperation
    operations: RestOperations
    caller: RestCaller
    access: RestAccess
    streams: LongRequests
    waits: LongRequests

    @property
    def user(self) -> str:
        return self.caller.operator.name

    @property
    def id(self) -> str:
        """Return the id in the URL; raise BadSetting if it is no UUID."""
        given = self.request.path_params["id"].lower()
        try:
            return _id(_encode(given))
        except msgspec.ValidationError:
            raise BadSetting(f"{given[:40]!r} is not a UUID") from None

    @property
    def asked(self) -> dict[str, str]:
        """Return the query parameters of the URL; raise BadSetting for an unknown parameter."""
        known = self.operation.query or {}
        for name in self.request.query_params:
            if name not in known:
                listed = ", ".join(known) or "none"
                raise BadSetting(f"{name[:40]!r} is not a parameter here; there are: {listed}")
        return dict(self.request.query_params)

    @property
    def wait(self) -> float:
        """Return the seconds for which the caller is willing to wait; refuse an invalid number."""
        given = self.asked.get("wait", "0")
        try:
            seconds = float(given)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= MOST_WAIT:
            raise BadSetting(f"wait: a number of seconds up to {MOST_WAIT:g}, not {given[:40]!r}")
        return seconds

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context in which this request counts as one that waits, if it waits; raise TooManyRequests
        if too many requests of its user wait.
        """
        if not self.wait:
            return nullcontext()
        self.waits.check(self.user)
        return self.waits.counted(self.user)

    def number(self, name: str, given: str | None) -> int | None:
        """Return a parameter as a number, None if it is missing; refuse another text."""
        if given is None:
            return None
        if not (given.isascii() and given.isdigit() and len(given) <= 18):
            raise BadSetting(f"{name}: a number, not {given[:40]!r}")
        return int(given)

    async def body(self, kind: type[M]) -> M:
        """Return the request's body as a message of this type; raise Undecodable with the wrong field, or
        TooBig.
        """
        chunks, size = [], 0
        async for part in self.request.stream():
            size += len(part)
            if size > LONGEST_BODY:
                raise TooBig(f"the body may have {LONGEST_BODY} bytes")
            chunks.append(part)
        return read(kind, b"".join(chunks))


Handler = Callable[[Call], Awaitable[Response]]


def answer(value: object, status: int = 200) -> Response:
    """Return a JSON answer."""
    return Response(_encode(value), status, media_type="application/json")
