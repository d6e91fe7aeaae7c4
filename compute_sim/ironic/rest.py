"""The REST API of the simulated Ironic: the requests that berth's workers and commands make, the enrolment of
nodes, and power.

The only API version is 1.115, the newest that berth requests; a request without a version gets it too.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bus.errors import NOT_JSON
from compute_sim.ironic.api import Api
from compute_sim.ironic.conductor import Conductor
from compute_sim.ironic.node import FIELDS, Json, SimNode, values_of
from compute_sim.ironic.patching import ApiRefusal, checked_traits

VERSION = "1.115"
HEADER = "X-OpenStack-Ironic-API-{}Version"
PAGE = 1000

_SHORT = ("instance_uuid", "maintenance", "power_state", "provision_state", "uuid", "name")
_FILTERS = ("provision_state", "resource_class", "conductor_group", "owner", "instance_uuid")
_SORT_KEYS = (*_SHORT, *_FILTERS, "created_at", "updated_at", "provision_updated_at")
_SELECTION = ("fields", "limit", "marker", "sort_key", "sort_dir")

# Returns the JSON of the answer, or None for an answer without a body.
Handler = Callable[[Request, str], Awaitable[Any]]


def rest_app(conductor: Conductor) -> Starlette:
    """Return Ironic's REST API as a web app."""
    handlers = _Handlers(conductor)
    node = "/v1/nodes/{ident}"

    def route(path: str, **methods: Handler) -> Route:
        """Return a route with a handler for each method."""

        async def answer(request: Request) -> Response:
            id_ = f"req-{conductor.clock.uuid()}"
            method = "GET" if request.method == "HEAD" else request.method
            status = {"GET": 200, "PATCH": 200, "POST": 201}.get(method, 204 if "/traits" in path else 202)
            try:
                _check_version(request)
                body = await methods[method](request, id_)
            except ApiRefusal as refused:
                fault = {"faultcode": "Client", "faultstring": refused.text, "debuginfo": None}
                status, body = refused.status, {"error_message": msgspec.json.encode(fault).decode()}
            content = b"" if body is None else msgspec.json.encode(body)
            headers = {HEADER.format(which): VERSION for which in ("", "Minimum-", "Maximum-")}
            headers["openstack-request-id"] = id_
            return Response(content, status, headers, media_type="application/json" if content else None)

        return Route(path, answer, methods=list(methods))

    return Starlette(
        routes=[
            route("/", GET=handlers.version),
            route("/v1", GET=handlers.version),
            route("/v1/nodes", GET=handlers.nodes, POST=handlers.create),
            route("/v1/nodes/detail", GET=handlers.nodes),
            route(node, GET=handlers.node, PATCH=handlers.patch),
            route(
                f"{node}/traits", GET=handlers.traits, PUT=handlers.set_traits, DELETE=handlers.remove_traits
            ),
            route(f"{node}/traits/{{trait}}", PUT=handlers.add_trait, DELETE=handlers.remove_trait),
            route(f"{node}/states/provision", PUT=handlers.provision),
            route(f"{node}/states/power", PUT=handlers.power),
            route(f"{node}/maintenance", PUT=handlers.maintain, DELETE=handlers.end_maintenance),
        ]
    )


class _Handlers:
    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._api = Api(conductor)

    async def version(self, request: Request, id_: str) -> Json:
        version = {"id": "v1", "status": "CURRENT", "min_version": VERSION, "version": VERSION}
        return {"id": "v1", "name": "A simulated Ironic", "default_version": version, "version": version}

    async def nodes(self, request: Request, id_: str) -> Json:
        query = dict(request.query_params)
        found = _page(self._conductor.nodes, query)
        fields = FIELDS if request.url.path.endswith("detail") else _fields(query, _SHORT)
        answer: Json = {"nodes": [values_of(node, fields, "+00:00") for node in found]}
        if len(found) == _limit(query):
            following = urlencode({**query, "marker": found[-1].uuid}, safe=",")
            answer["next"] = f"{request.url.replace(query=following)}"
        return answer

    async def node(self, request: Request, id_: str) -> Json:
        fields = _fields(request.query_params, FIELDS)
        return values_of(self._conductor.find(_ident(request)), fields, "+00:00")

    async def patch(self, request: Request, id_: str) -> Json:
        node = await self._api.patch(_ident(request), await _body(request), id_)
        return values_of(node, FIELDS, "+00:00")

    async def create(self, request: Request, id_: str) -> Json:
        return values_of(await self._api.create(await _object(request), id_), FIELDS, "+00:00")

    async def traits(self, request: Request, id_: str) -> Json:
        return {"traits": self._conductor.find(_ident(request)).traits}

    async def set_traits(self, request: Request, id_: str) -> None:
        traits = checked_traits((await _object(request)).get("traits"))
        await self._api.set_traits(_ident(request), traits, id_)

    async def add_trait(self, request: Request, id_: str) -> None:
        present = self._conductor.find(_ident(request)).traits
        traits = checked_traits([*present, request.path_params["trait"]])
        await self._api.set_traits(_ident(request), traits, id_)

    async def remove_trait(self, request: Request, id_: str) -> None:
        await self._api.remove_trait(_ident(request), request.path_params["trait"], id_)

    async def remove_traits(self, request: Request, id_: str) -> None:
        await self._api.set_traits(_ident(request), (), id_)

    async def provision(self, request: Request, id_: str) -> None:
        await self._api.set_provision_state(_ident(request), (await _object(request)).get("target"), id_)

    async def power(self, request: Request, id_: str) -> None:
        await self._api.set_power_state(_ident(request), (await _object(request)).get("target"), id_)

    async def maintain(self, request: Request, id_: str) -> None:
        await self._api.set_maintenance(_ident(request), True, (await _object(request)).get("reason"), id_)

    async def end_maintenance(self, request: Request, id_: str) -> None:
        await self._api.set_maintenance(_ident(request), False, None, id_)


def _check_version(request: Request) -> None:
    wanted = request.headers.get(HEADER.format(""), VERSION)
    if wanted not in (VERSION, "latest"):
        raise ApiRefusal(406, f"Version {wanted} was requested; the simulated Ironic only has {VERSION}")


def _ident(request: Request) -> str:
    return str(request.path_params["ident"])


async def _body(request: Request) -> Any:
    raw = await request.body()
    try:
        return msgspec.json.decode(raw) if raw else {}
    except NOT_JSON as problem:
        raise ApiRefusal(400, f"The body is not JSON: {problem}") from None


async def _object(request: Request) -> Json:
    body = await _body(request)
    if not isinstance(body, dict):
        raise ApiRefusal(400, "The body is not a JSON object")
    return body


def _fields(query: Mapping[str, str], default: Sequence[str]) -> Sequence[str]:
    if "fields" not in query:
        return default
    fields = query["fields"].split(",")
    if unknown := [name for name in fields if name not in FIELDS]:
        raise ApiRefusal(400, f'Field(s) "{", ".join(unknown)}" are not valid.')
    return fields


def _page(nodes: Mapping[str, SimNode], query: Mapping[str, str]) -> list[SimNode]:
    """Return the nodes that a request for a list selects, sorted: at most the limit, after the marker."""
    conditions = {name: value for name, value in query.items() if name not in _SELECTION}
    if unknown := ", ".join(sorted(conditions.keys() - {*_FILTERS, "maintenance", "shard"})):
        raise ApiRefusal(400, f"The simulated Ironic has no filter {unknown}")
    ordered = list(nodes.values())  # oldest first
    if sort_key := query.get("sort_key"):
        if sort_key not in _SORT_KEYS:
            raise ApiRefusal(400, f"The sort_key value {sort_key} is an invalid field for sorting")
        ordered.sort(key=lambda node: _sort_value(node, sort_key))
    if query.get("sort_dir") == "desc":
        ordered.reverse()
    if marker := query.get("marker"):
        if marker not in nodes:
            raise ApiRefusal(404, f"Node {marker} could not be found.")
        ordered = ordered[ordered.index(nodes[marker]) + 1 :]
    fitting = (node for node in ordered if all(_fits(node, *each) for each in conditions.items()))
    return list(islice(fitting, _limit(query)))


def _sort_value(node: SimNode, sort_key: str) -> tuple[bool, Any, str]:
    value = getattr(node, sort_key)
    return value is not None, "" if value is None else value, node.uuid


def _fits(node: SimNode, name: str, value: str) -> bool:
    if name == "shard":
        return node.shard in value.split(",")
    if name == "maintenance":
        return node.maintenance == (value.lower() == "true")
    return bool(getattr(node, name) == value)


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", str(PAGE))
    if not text.isdecimal() or not int(text):
        raise ApiRefusal(400, f"Expected a positive integer for limit: {text}")
    return min(int(text), PAGE)
