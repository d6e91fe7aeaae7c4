"""The simulated Ironic's REST API: the reads and writes a control plane makes, and a few to make trouble."""

import base64
import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from compute_sim.ironic import views
from compute_sim.ironic.allocations import NodeAllocations
from compute_sim.ironic.api import Api
from compute_sim.ironic.conductor import Conductor
from compute_sim.ironic.machine import event_of
from compute_sim.ironic.node import Json, SimNode
from compute_sim.ironic.plan import FAULTS, KINDS
from compute_sim.ironic.power import BMC, Power
from compute_sim.ironic.refused import ApiRefusal, not_acceptable
from compute_sim.ironic.works import Works

VERSION = "X-OpenStack-Ironic-API-Version"
MINIMUM = "X-OpenStack-Ironic-API-Minimum-Version"
MAXIMUM = "X-OpenStack-Ironic-API-Maximum-Version"
REQUEST_ID = "openstack-request-id"

_LOWEST, _HIGHEST = f"1.{views.MINIMUM}", f"1.{views.MAXIMUM}"
_ABORT_DEPLOY_SINCE = 110

Handler = Callable[["_Call"], Awaitable[Response]]


class _Call:
    """One request: its version, its id, its body."""

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
        except msgspec.DecodeError as problem:
            raise ApiRefusal(400, f"The body is not JSON: {problem}") from None

    async def fields(self) -> Json:
        body = await self.body()
        if not isinstance(body, dict):
            raise ApiRefusal(400, "The body is not a JSON object")
        return body


def rest_app(
    conductor: Conductor, works: Works, power: Power, *, user: str = "", password: str = ""
) -> Starlette:
    """Without a user everybody may do everything; with one, only who names it and its password."""
    doors = _Doors(conductor, works, power)

    def door(path: str, **handlers: Handler) -> Route:
        async def answer(request: Request) -> Response:
            return await _answer(request, handlers, conductor, _token(user, password))

        return Route(path, answer, methods=sorted(handlers))

    node = "/v1/nodes/{ident}"
    return Starlette(
        routes=[
            door("/", GET=doors.root),
            door("/v1", GET=doors.v1),
            door("/v1/", GET=doors.v1),
            door("/v1/nodes", GET=doors.nodes, POST=doors.create),
            door("/v1/nodes/detail", GET=doors.nodes),
            door(node, GET=doors.node, PATCH=doors.patch, DELETE=doors.delete),
            door(f"{node}/states", GET=doors.states),
            door(f"{node}/states/provision", PUT=doors.provision),
            door(f"{node}/states/power", PUT=doors.power),
            door(f"{node}/maintenance", PUT=doors.maintain, DELETE=doors.end_maintenance),
            door(f"{node}/traits", GET=doors.traits, PUT=doors.set_traits, DELETE=doors.no_traits),
            door(f"{node}/traits/{{trait}}", PUT=doors.add_trait, DELETE=doors.remove_trait),
            door(f"{node}/validate", GET=doors.validate),
            door("/v1/allocations", GET=doors.allocations, POST=doors.allocate),
            door("/v1/allocations/{ident}", GET=doors.allocation, DELETE=doors.deallocate),
            door("/sim/nodes/{ident}/fault", PUT=doors.fault),
            door("/sim/nodes/{ident}/bmc", PUT=doors.bmc),
            door("/sim/storm", PUT=doors.storm),
        ],
        exception_handlers={HTTPException: _no_such_door},
    )


class _Doors:
    """Each door parses, has it done, and writes the answer."""

    def __init__(self, conductor: Conductor, works: Works, power: Power) -> None:
        self._conductor = conductor
        self._works = works
        self._power = power
        self._api = Api(conductor, works, power)
        self._allocations = NodeAllocations(conductor)

    async def root(self, call: _Call) -> Response:
        version = _version(call.url)
        return _json(
            {
                "name": "OpenStack Ironic API",
                "description": "A simulated Ironic: no metal is harmed.",
                "default_version": version,
                "versions": [version],
            }
        )

    async def v1(self, call: _Call) -> Response:
        parts = {
            part: [{"href": f"{call.url}/v1/{part}/", "rel": "self"}] for part in ("nodes", "allocations")
        }
        return _json({**_version(call.url), **parts})

    async def nodes(self, call: _Call) -> Response:
        query = dict(call.request.query_params)
        wanted = views.asked(query, call.minor)
        found = views.page(self._conductor.nodes, wanted)
        path = call.request.url.path.removeprefix("/v1/")
        detail = path.endswith("detail") or query.get("detail", "").lower() == "true"
        answer: Json = {"nodes": [_shown(node, wanted.fields, detail, call) for node in found]}
        if (link := views.next_link(found, wanted, call.url, path)) is not None:
            answer["next"] = link
        return _json(answer)

    async def create(self, call: _Call) -> Response:
        node = await self._api.create(await call.fields(), call.minor, call.id)
        return _json(views.whole(node, call.minor, call.url), 201)

    async def node(self, call: _Call) -> Response:
        fields = views.fields_of(call.request.query_params.get("fields"), call.minor)
        return _json(_shown(self._conductor.find(call.ident), fields, True, call))

    async def patch(self, call: _Call) -> Response:
        node = await self._api.patch(call.ident, await call.body(), call.id)
        return _json(views.whole(node, call.minor, call.url))

    async def delete(self, call: _Call) -> Response:
        await self._api.delete(call.ident, call.id)
        return Response(status_code=204)

    async def states(self, call: _Call) -> Response:
        return _json(views.states(self._conductor.find(call.ident), call.minor))

    async def provision(self, call: _Call) -> Response:
        more = await call.fields()
        target = _text(more, "target")
        views.check_verb(target, call.minor)
        node = self._conductor.find(call.ident)
        too_old = call.minor < _ABORT_DEPLOY_SINCE
        if target == "abort" and node.provision_state == "wait call-back" and too_old:
            raise not_acceptable()
        await self._api.provision(call.ident, target, more, call.id)
        return Response(status_code=202)

    async def power(self, call: _Call) -> Response:
        await self._api.power(call.ident, _text(await call.fields(), "target"), call.id)
        return Response(status_code=202)

    async def maintain(self, call: _Call) -> Response:
        await self._api.maintain(call.ident, True, (await call.fields()).get("reason"), call.id)
        return Response(status_code=202)

    async def end_maintenance(self, call: _Call) -> Response:
        await self._api.maintain(call.ident, False, None, call.id)
        return Response(status_code=202)

    async def traits(self, call: _Call) -> Response:
        return _json({"traits": self._conductor.find(call.ident).traits})

    async def set_traits(self, call: _Call) -> Response:
        await self._api.set_traits(call.ident, (await call.fields()).get("traits"), call.id)
        return Response(status_code=204)

    async def no_traits(self, call: _Call) -> Response:
        await self._api.set_traits(call.ident, [], call.id)
        return Response(status_code=204)

    async def add_trait(self, call: _Call) -> Response:
        await self._api.add_trait(call.ident, call.request.path_params["trait"], call.id)
        return Response(status_code=204)

    async def remove_trait(self, call: _Call) -> Response:
        await self._api.remove_trait(call.ident, call.request.path_params["trait"], call.id)
        return Response(status_code=204)

    async def validate(self, call: _Call) -> Response:
        self._conductor.find(call.ident)
        return _json(
            {part: {"result": True} for part in ("boot", "deploy", "management", "network", "power")}
        )

    async def allocations(self, call: _Call) -> Response:
        return _json({"allocations": [one.said("+00:00") for one in self._allocations.known.values()]})

    async def allocate(self, call: _Call) -> Response:
        allocation = await self._allocations.create(await call.fields(), call.id)
        return _json(allocation.said("+00:00"), 201)

    async def allocation(self, call: _Call) -> Response:
        return _json(self._allocations.find(call.ident).said("+00:00"))

    async def deallocate(self, call: _Call) -> Response:
        await self._allocations.delete(call.ident, call.id)
        return Response(status_code=204)

    # What no real Ironic has

    async def fault(self, call: _Call) -> Response:
        """{"work": "clean", "fault": "step"}: the node's next work of that kind fails so."""
        body = await call.fields()
        work, fault = body.get("work"), body.get("fault")
        if work not in KINDS or fault not in (*FAULTS, None):
            raise ApiRefusal(
                400, f"work is one of {', '.join(KINDS)}; fault is one of {', '.join(FAULTS)} or null"
            )
        self._conductor.plan_fault(self._conductor.find(call.ident), work, fault)
        return Response(status_code=204)

    async def bmc(self, call: _Call) -> Response:
        """{"says": "unreachable"}: what the node's BMC says from now on; null: what Ironic believes."""
        says = (await call.fields()).get("says")
        if says not in (*BMC, None):
            raise ApiRefusal(400, f"says is one of {', '.join(BMC)} or null")
        self._power.tamper(self._conductor.find(call.ident), says)
        return Response(status_code=204)

    async def storm(self, call: _Call) -> Response:
        """{"target": "provide", "count": 5000}: asks it of so many nodes that know the verb, all at once."""
        body = await call.fields()
        target, count = _text(body, "target"), body.get("count")
        if not isinstance(count, int) or count < 1:
            raise ApiRefusal(400, "count is how many nodes")
        return _json({"nodes": storm(self._conductor, self._works, target, count, call.id)}, 202)


def storm(conductor: Conductor, works: Works, target: str, count: int, request: str) -> int:
    """Ask this of so many free nodes that know the verb, all at once; how many there were."""
    asked = 0
    for node in conductor.nodes.values():
        event = event_of(target, node.provision_state)
        if asked == count:
            break
        busy = node.reservation is not None or node.maintenance
        if event is None or busy or node.protected or node.retired:
            continue
        works.begin(node, event, request)
        asked += 1
    return asked


def _shown(node: SimNode, fields: tuple[str, ...] | None, detail: bool, call: _Call) -> Json:
    if fields is not None:
        return views.some(node, fields, call.minor, call.url)
    return (views.whole if detail else views.short)(node, call.minor, call.url)


async def _answer(
    request: Request, handlers: dict[str, Handler], conductor: Conductor, token: str
) -> Response:
    id_ = f"req-{conductor.clock.uuid()}"
    try:
        minor = _minor(request)
        if token and not _let_in(request, token):
            raise ApiRefusal(401, "Incorrect username or password")
        handler = handlers["GET" if request.method == "HEAD" else request.method]
        if handler is not handlers.get("GET"):
            await conductor.room()  # as Ironic holds a request while it cannot notify
        response = await handler(_Call(request, minor, id_))
        response.headers[VERSION] = f"1.{minor}"
    except ApiRefusal as refused:
        response = _refusal(refused.status, refused.text)
        if refused.status == 401:
            response.headers["WWW-Authenticate"] = 'Basic realm="Baremetal API"'
    response.headers[MINIMUM], response.headers[MAXIMUM] = _LOWEST, _HIGHEST
    response.headers[REQUEST_ID] = id_
    return response


async def _no_such_door(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return _refusal(problem.status_code, problem.detail)


def _refusal(status: int, text: str) -> Response:
    fault = {"faultcode": "Client", "faultstring": text, "debuginfo": None}
    return _json({"error_message": msgspec.json.encode(fault).decode()}, status)


def _minor(request: Request) -> int:
    """The minor version this request is to be answered in; Ironic's oldest unless it says."""
    text = request.headers.get(VERSION, "").strip()
    if not text:
        words = request.headers.get("OpenStack-API-Version", "").split()
        text = words[1] if len(words) == 2 and words[0] == "baremetal" else _LOWEST
    if text.lower() == "latest":
        return views.MAXIMUM
    major, _, minor = text.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        raise not_acceptable(f"Invalid value for {VERSION} header")
    if major != "1" or not views.MINIMUM <= int(minor) <= views.MAXIMUM:
        raise not_acceptable(
            f"Version {text} was requested but the minor version is not supported by this service. The "
            f"supported version range is: [{_LOWEST}, {_HIGHEST}]."
        )
    return int(minor)


def _token(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode() if user else ""


def _let_in(request: Request, token: str) -> bool:
    given = request.headers.get("Authorization", "")
    return hmac.compare_digest(given.encode(), f"Basic {token}".encode())


def _text(body: Json, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise ApiRefusal(400, f"Missing mandatory parameter: {name}")
    return value


def _version(url: str) -> Json:
    return {
        "id": "v1",
        "links": [{"href": f"{url}/v1/", "rel": "self"}],
        "status": "CURRENT",
        "min_version": _LOWEST,
        "version": _HIGHEST,
    }


def _json(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
