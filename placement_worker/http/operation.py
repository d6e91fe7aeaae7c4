"""An operation of the HTTP API: a method of a URL pattern, with its versions, policy rule and handler."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from starlette.responses import Response

from placement_worker.http import api_call

Handler = Callable[[api_call.ApiCall], Awaitable[api_call.ApiAnswer | Response]]

BODY = 1 << 20  # bytes
LARGE_BODY = 4 << 20
BULK_BODY = 64 << 20


@dataclass(frozen=True)
class Operation:
    method: str
    rule: str  # policy rule; empty: no permission needed
    handler: Handler
    since: int = 0  # first minor version with this operation
    until: int = api_call.LATEST_MINOR
    before: int = 404  # HTTP status for older minor versions
    body: int = 0  # maximum size of the JSON body in bytes; 0: no body
    json: bool = True  # for GET: refuse clients that do not accept JSON
    of_provider: bool = False  # if the provider is missing, answer 404 even if the body is invalid
    # returns the attributes of the request for the policy rule
    target: Callable[[api_call.ApiCall], Mapping[str, str]] = lambda call: {}

    @property
    def ends(self) -> bool:
        """Return whether a later microversion of the API removed this operation."""
        return self.until < api_call.LATEST_MINOR


get = partial(Operation, "GET")
put = partial(Operation, "PUT", body=BODY)
post = partial(Operation, "POST", body=BODY)
patch = partial(Operation, "PATCH", body=BODY)
delete = partial(Operation, "DELETE")
