"""Requests to the simulated Ironic (version, id, body) and JSON answers."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bus.errors import NOT_JSON
from compute_sim.ironic.node import Json, SimNode


class SimRequest:
    """One request with its version, id and body."""

    __slots__ = ("id", "minor", "request", "url")

    def __init__(self, request: Request, minor: int, id_: str) -> None:
        self.request = request
        self.minor = minor
        self.id = id_
        self.url = str(request.base_url).rstrip("/")

    @property
    def ident(self) -> str:
        return str(self.request.path_params["ident"])

    async def body(self) -> Any:
        raw = await self.request.body()
        if not raw:
            return {}
        try:
            return msgspec.json.decode(raw)
        except NOT_JSON as problem:
            raise ApiRefusal(400, f"The body is not JSON: {problem}") from None

    async def fields(self) -> Json:
        body = await self.body()
        if not isinstance(body, dict):
            raise ApiRefusal(400, "The body is not a JSON object")
        return body


def text_of(body: Json, name: str) -> str:
    """Return a mandatory parameter."""
    value = body.get(name)
    if not isinstance(value, str):
        raise ApiRefusal(400, f"Missing mandatory parameter: {name}")
    return value


def json_response(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


class ApiRefusal(Exception):
    """Ironic refuses the request."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def not_found(ident: str) -> ApiRefusal:
    return ApiRefusal(404, f"Node {ident} could not be found.")


def not_acceptable(text: str = "Request not acceptable.") -> ApiRefusal:
    return ApiRefusal(406, text)


def locked(node: SimNode) -> ApiRefusal:
    return ApiRefusal(
        409,
        f"Node {node.uuid} is locked by host {node.reservation}, please retry after the current operation "
        "is completed.",
    )


def wrong_state(action: str, node: SimNode, state: str | None) -> ApiRefusal:
    return ApiRefusal(
        400,
        f'The requested action "{action}" can not be performed on node "{node.uuid}" while it is in state '
        f'"{state}".',
    )
