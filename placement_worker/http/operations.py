"""One operation of the API: a method of an address, and what a request must be before its handler sees it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from placement_worker.http import microversions
from placement_worker.http.api_call import ApiAnswer, ApiCall, too_large
from placement_worker.http.errors import JSON, Problem, not_allowed, not_found, takes_json
from placement_worker.http.policy import AccessPolicy
from placement_worker.http.providers import provider_of
from placement_worker.placement import Placement

Handler = Callable[[ApiCall], Awaitable[ApiAnswer]] | Callable[[ApiCall], Awaitable[Response]]

CALL = "berth.call"  # where a call waits in an ASGI scope
BODY = 1 << 20  # bytes
LARGE_BODY = 4 << 20
BULK_BODY = 64 << 20


def _nothing(call: ApiCall) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Operation:
    method: str
    rule: str  # policy rule; empty: no permission needed
    handler: Handler
    since: int = 0  # minor version
    until: int = microversions.LATEST_MINOR
    before: int = 404  # status for older microversions
    body: int = 0  # bytes of its JSON body; 0: none
    json: bool = True  # a GET that returns only JSON
    of_provider: bool = False  # a missing provider counts for more than what is wrong with the body
    target: Callable[[ApiCall], Mapping[str, str]] = _nothing  # attributes that the rule may use

    @property
    def ends(self) -> bool:
        """Return whether a later microversion removed the operation."""
        return self.until < microversions.LATEST_MINOR


get = partial(Operation, "GET")
put = partial(Operation, "PUT", body=BODY)
post = partial(Operation, "POST", body=BODY)
patch = partial(Operation, "PATCH", body=BODY)
delete = partial(Operation, "DELETE")


class Resource:
    """The operations of one URL pattern, as an ASGI application."""

    def __init__(
        self, pattern: str, placement: Placement, policy: AccessPolicy, operations: Sequence[Operation]
    ) -> None:
        self.pattern = pattern
        self._placement = placement
        self._policy = policy
        self.operations = operations
        self._offered: dict[str, list[Operation]] = {}
        for operation in operations:
            self._offered.setdefault(operation.method, []).append(operation)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: ApiCall = scope[CALL]
        call.path, call.pattern = scope["path_params"], self.pattern
        operation = self._chosen(call)
        self._check(operation, call)
        try:
            answer = await operation.handler(call)
        except Problem as problem:
            if operation.of_provider and problem.status == 400:
                await provider_of(self._placement, call.path["uuid"])
            raise
        if isinstance(answer, Response):  # a streaming response
            call.status = answer.status_code
            await answer(scope, receive, send)
        else:
            await call.send(answer, send)

    def _chosen(self, call: ApiCall) -> Operation:
        if call.method not in self._offered:
            why = "The method specified is not allowed for this resource."
            raise not_allowed(call.method, why, self._offered)
        offered = self._offered[call.method]
        for operation in offered:
            if operation.since <= call.minor <= operation.until:
                return operation
        raise not_allowed(call.method) if offered[0].before == 405 else not_found()

    def _check(self, operation: Operation, call: ApiCall) -> None:
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
                raise too_large(operation.body)
            call.limit = operation.body
        if operation.rule and not self._policy.allows(operation.rule, call.who, operation.target(call)):
            raise Problem(403, f"Policy does not allow {operation.rule} to be performed.")
