"""The REST API of the simulated Ironic: what a control plane reads and writes, and fault injection."""

import base64
import hmac
from collections.abc import Awaitable, Callable

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from compute_sim.ironic import views
from compute_sim.ironic.allocations import NodeAllocations
from compute_sim.ironic.api import Api
from compute_sim.ironic.conductor import FAULTS, KINDS, Conductor
from compute_sim.ironic.node import Json, SimNode, event_of
from compute_sim.ironic.patching import ApiRefusal, SimRequest, json_response, not_acceptable, text_of
from compute_sim.ironic.power import BMC, Power
from compute_sim.ironic.transitions import Works

VERSION = "X-OpenStack-Ironic-API-Version"
MINIMUM = "X-OpenStack-Ironic-API-Minimum-Version"
MAXIMUM = "X-OpenStack-Ironic-API-Maximum-Version"
REQUEST_ID = "openstack-request-id"

_LOWEST, _HIGHEST = f"1.{views.MINIMUM}", f"1.{views.MAXIMUM}"
_ABORT_DEPLOY_SINCE = 110

Handler = Callable[[SimRequest], Awaitable[Response]]


def rest_app(
    conductor: Conductor, works: Works, power: Power, *, user: str = "", password: str = ""
) -> Starlette:
    """Return the application. With a user, requests need that user and password."""
    nodes = _NodeHandlers(conductor, works, power)
    trouble = FaultHandlers(conductor, works, power)

    def route(path: str, **handlers: Handler) -> Route:
        async def answer(request: Request) -> Response:
            return await _answer(request, handlers, conductor, _token(user, password))

        return Route(path, answer, methods=sorted(handlers))

    node = "/v1/nodes/{ident}"
    return Starlette(
        routes=[
            route("/", GET=nodes.root),
            route("/v1", GET=nodes.v1),
            route("/v1/", GET=nodes.v1),
            route("/v1/nodes", GET=nodes.nodes, POST=nodes.create),
            route("/v1/nodes/detail", GET=nodes.nodes),
            route(node, GET=nodes.node, PATCH=nodes.patch, DELETE=nodes.delete),
            route(f"{node}/states", GET=nodes.states),
            route(f"{node}/states/provision", PUT=nodes.provision),
            route(f"{node}/states/power", PUT=nodes.power),
            route(f"{node}/maintenance", PUT=nodes.maintain, DELETE=nodes.end_maintenance),
            route(f"{node}/traits", GET=nodes.traits, PUT=nodes.set_traits, DELETE=nodes.no_traits),
            route(f"{node}/traits/{{trait}}", PUT=nodes.add_trait, DELETE=nodes.remove_trait),
            route(f"{node}/validate", GET=nodes.validate),
            route("/v1/allocations", GET=nodes.allocations, POST=nodes.allocate),
            route("/v1/allocations/{ident}", GET=nodes.allocation, DELETE=nodes.deallocate),
            route("/sim/nodes/{ident}/fault", PUT=trouble.fault),
            route("/sim/nodes/{ident}/bmc", PUT=trouble.bmc),
            route("/sim/storm", PUT=trouble.storm),
        ],
        exception_handlers={HTTPException: _no_such_path},
    )


class _NodeHandlers:
    """Handlers: each parses the request, executes it and writes the answer."""

    def __init__(self, conductor: Conductor, works: Works, power: Power) -> None:
        self._conductor = conductor
        self._api = Api(conductor, works, power)
        self._allocations = NodeAllocations(conductor)

    async def root(self, call: SimRequest) -> Response:
        version = _version(call.url)
        return json_response(
            {
                "name": "OpenStack Ironic API",
                "description": "A simulated Ironic: no metal is harmed.",
                "default_version": version,
                "versions": [version],
            }
        )

    async def v1(self, call: SimRequest) -> Response:
        parts = {
            part: [{"href": f"{call.url}/v1/{part}/", "rel": "self"}] for part in ("nodes", "allocations")
        }
        return json_response({**_version(call.url), **parts})

    async def nodes(self, call: SimRequest) -> Response:
        query = dict(call.request.query_params)
        wanted = views.asked(query, call.minor)
        found = views.page(self._conductor.nodes, wanted)
        path = call.request.url.path.removeprefix("/v1/")
        detail = path.endswith("detail") or query.get("detail", "").lower() == "true"
        answer: Json = {"nodes": [_node_json(node, wanted.fields, detail, call) for node in found]}
        if (link := views.next_link(found, wanted, call.url, path)) is not None:
            answer["next"] = link
        return json_response(answer)

    async def create(self, call: SimRequest) -> Response:
        node = await self._api.create(await call.fields(), call.minor, call.id)
        return json_response(views.whole(node, call.minor, call.url), 201)

    async def node(self, call: SimRequest) -> Response:
        fields = views.fields_of(call.request.query_params.get("fields"), call.minor)
        return json_response(_node_json(self._conductor.find(call.ident), fields, True, call))

    async def patch(self, call: SimRequest) -> Response:
        node = await self._api.patch(call.ident, await call.body(), call.id)
        return json_response(views.whole(node, call.minor, call.url))

    async def delete(self, call: SimRequest) -> Response:
        await self._api.delete(call.ident, call.id)
        return Response(status_code=204)

    async def states(self, call: SimRequest) -> Response:
        return json_response(views.states(self._conductor.find(call.ident), call.minor))

    async def provision(self, call: SimRequest) -> Response:
        more = await call.fields()
        target = text_of(more, "target")
        views.check_verb(target, call.minor)
        node = self._conductor.find(call.ident)
        too_old = call.minor < _ABORT_DEPLOY_SINCE
        if target == "abort" and node.provision_state == "wait call-back" and too_old:
            raise not_acceptable()
        await self._api.provision(call.ident, target, more, call.id)
        return Response(status_code=202)

    async def power(self, call: SimRequest) -> Response:
        await self._api.power(call.ident, text_of(await call.fields(), "target"), call.id)
        return Response(status_code=202)

    async def maintain(self, call: SimRequest) -> Response:
        await self._api.maintain(call.ident, True, (await call.fields()).get("reason"), call.id)
        return Response(status_code=202)

    async def end_maintenance(self, call: SimRequest) -> Response:
        await self._api.maintain(call.ident, False, None, call.id)
        return Response(status_code=202)

    async def traits(self, call: SimRequest) -> Response:
        return json_response({"traits": self._conductor.find(call.ident).traits})

    async def set_traits(self, call: SimRequest) -> Response:
        await self._api.set_traits(call.ident, (await call.fields()).get("traits"), call.id)
        return Response(status_code=204)

    async def no_traits(self, call: SimRequest) -> Response:
        await self._api.set_traits(call.ident, [], call.id)
        return Response(status_code=204)

    async def add_trait(self, call: SimRequest) -> Response:
        await self._api.add_trait(call.ident, call.request.path_params["trait"], call.id)
        return Response(status_code=204)

    async def remove_trait(self, call: SimRequest) -> Response:
        await self._api.remove_trait(call.ident, call.request.path_params["trait"], call.id)
        return Response(status_code=204)

    async def validate(self, call: SimRequest) -> Response:
        self._conductor.find(call.ident)
        return json_response(
            {part: {"result": True} for part in ("boot", "deploy", "management", "network", "power")}
        )

    async def allocations(self, call: SimRequest) -> Response:
        return json_response(
            {"allocations": [allocation.as_json("+00:00") for allocation in self._allocations.known.values()]}
        )

    async def allocate(self, call: SimRequest) -> Response:
        allocation = await self._allocations.create(await call.fields(), call.id)
        return json_response(allocation.as_json("+00:00"), 201)

    async def allocation(self, call: SimRequest) -> Response:
        return json_response(self._allocations.find(call.ident).as_json("+00:00"))

    async def deallocate(self, call: SimRequest) -> Response:
        await self._allocations.delete(call.ident, call.id)
        return Response(status_code=204)


def _node_json(node: SimNode, fields: tuple[str, ...] | None, detail: bool, call: SimRequest) -> Json:
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
            await conductor.room()  # Ironic delays a request too while it cannot notify
        response = await handler(SimRequest(request, minor, id_))
        response.headers[VERSION] = f"1.{minor}"
    except ApiRefusal as refused:
        response = _refusal(refused.status, refused.text)
        if refused.status == 401:
            response.headers["WWW-Authenticate"] = 'Basic realm="Baremetal API"'
    response.headers[MINIMUM], response.headers[MAXIMUM] = _LOWEST, _HIGHEST
    response.headers[REQUEST_ID] = id_
    return response


async def _no_such_path(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return _refusal(problem.status_code, problem.detail)


def _refusal(status: int, text: str) -> Response:
    fault = {"faultcode": "Client", "faultstring": text, "debuginfo": None}
    return json_response({"error_message": msgspec.json.encode(fault).decode()}, status)


def _minor(request: Request) -> int:
    """Return the minor version of the request, by default Ironic's oldest."""
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


def _version(url: str) -> Json:
    return {
        "id": "v1",
        "links": [{"href": f"{url}/v1/", "rel": "self"}],
        "status": "CURRENT",
        "min_version": _LOWEST,
        "version": _HIGHEST,
    }


class FaultHandlers:
    """Fault injection under /sim: failing works, wrong power states, event storms."""

    def __init__(self, conductor: Conductor, works: Works, power: Power) -> None:
        self._conductor = conductor
        self._works = works
        self._power = power

    async def fault(self, call: SimRequest) -> Response:
        """Handle {"work": "clean", "fault": "step"}: the node's next work of that kind fails."""
        body = await call.fields()
        work, fault = body.get("work"), body.get("fault")
        if work not in KINDS or fault not in (*FAULTS, None):
            raise ApiRefusal(
                400, f"work is one of {', '.join(KINDS)}; fault is one of {', '.join(FAULTS)} or null"
            )
        self._conductor.plan_fault(self._conductor.find(call.ident), work, fault)
        return Response(status_code=204)

    async def bmc(self, call: SimRequest) -> Response:
        """Handle {"says": "unreachable"}: the node's BMC reports this; null restores the state that Ironic
        assumes.
        """
        says = (await call.fields()).get("says")
        if says not in (*BMC, None):
            raise ApiRefusal(400, f"says is one of {', '.join(BMC)} or null")
        self._power.tamper(self._conductor.find(call.ident), says)
        return Response(status_code=204)

    async def storm(self, call: SimRequest) -> Response:
        """Handle {"target": "provide", "count": 5000}: start this transition on so many nodes
        simultaneously.
        """
        body = await call.fields()
        target, count = text_of(body, "target"), body.get("count")
        if not isinstance(count, int) or count < 1:
            raise ApiRefusal(400, "count is how many nodes")
        return json_response({"nodes": storm(self._conductor, self._works, target, count, call.id)}, 202)


def storm(conductor: Conductor, works: Works, target: str, count: int, request: str) -> int:
    """Start this transition on at most `count` free nodes simultaneously, and return their number."""
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
