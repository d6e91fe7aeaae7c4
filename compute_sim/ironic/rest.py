"""The REST API of the simulated Ironic. Its paths under /sim inject failures and mass changes of nodes."""

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
from compute_sim.ironic.conductor import FAULTS, KINDS, Conductor
from compute_sim.ironic.node import Json, SimNode, event_of
from compute_sim.ironic.patching import ApiRefusal, SimRequest, json_response, not_acceptable, target_of
from compute_sim.ironic.power import BMC, Power
from compute_sim.ironic.transitions import Works

VERSION = "X-OpenStack-Ironic-API-Version"
MINIMUM = "X-OpenStack-Ironic-API-Minimum-Version"
MAXIMUM = "X-OpenStack-Ironic-API-Maximum-Version"
REQUEST_ID = "openstack-request-id"

_LOWEST, _HIGHEST = f"1.{views.MINIMUM}", f"1.{views.MAXIMUM}"
_ABORT_DEPLOY_SINCE = 110

# Returns the JSON of the answer, or None for an answer without a body.
Handler = Callable[[SimRequest], Awaitable[Any]]


def rest_app(
    conductor: Conductor, works: Works, power: Power, login: tuple[str, str] = ("", "")
) -> Starlette:
    """Return Ironic's REST API as a web app; if `login` has a user, requests need its name and password."""
    token = base64.b64encode(":".join(login).encode()).decode() if login[0] else ""
    nodes = _Handlers(conductor, works, power, token)
    api, allocations, route = nodes.api, nodes.allocations, nodes.route
    node = "/v1/nodes/{ident}"
    return Starlette(
        routes=[
            route("/", GET=nodes.root),
            route("/v1", GET=nodes.v1),
            route("/v1/", GET=nodes.v1),
            route("/v1/nodes", GET=nodes.nodes, POST=nodes.create),
            route("/v1/nodes/detail", GET=nodes.nodes),
            route(
                node, GET=nodes.node, PATCH=nodes.patch, DELETE=lambda call: api.delete(call.ident, call.id)
            ),
            route(f"{node}/states", GET=nodes.states),
            route(f"{node}/states/provision", 202, PUT=nodes.provision),
            route(f"{node}/states/power", 202, PUT=nodes.power_state),
            route(f"{node}/maintenance", 202, PUT=nodes.maintain, DELETE=nodes.maintain),
            route(f"{node}/traits", GET=nodes.traits, PUT=nodes.set_traits, DELETE=nodes.set_traits),
            route(
                f"{node}/traits/{{trait}}",
                PUT=lambda call: api.change_traits(call.ident, call.id, add=call.trait),
                DELETE=lambda call: api.change_traits(call.ident, call.id, missing=call.trait),
            ),
            route(f"{node}/validate", GET=nodes.validate),
            route("/v1/allocations", GET=nodes.listed, POST=nodes.allocate),
            route(
                "/v1/allocations/{ident}",
                GET=nodes.allocation,
                DELETE=lambda call: allocations.delete(call.ident, call.id),
            ),
            route("/sim/nodes/{ident}/fault", PUT=nodes.fault),
            route("/sim/nodes/{ident}/bmc", PUT=nodes.bmc),
            route("/sim/storm", 202, PUT=nodes.storm),
        ],
        exception_handlers={HTTPException: _no_such_path},
    )


class _Handlers:
    def __init__(self, conductor: Conductor, works: Works, power: Power, token: str) -> None:
        self._conductor, self._works, self._power, self._token = conductor, works, power, token
        self.api = Api(conductor, works, power)
        self.allocations = NodeAllocations(conductor)

    def route(self, path: str, status: int = 204, **handlers: Handler) -> Route:
        """Return a route of the API, with a handler for each method; a successful PUT or DELETE is answered
        with `status`.
        """

        async def answer(request: Request) -> Response:
            id_ = f"req-{self._conductor.clock.uuid()}"
            try:
                minor = _minor(request)
                given = request.headers.get("Authorization", "").encode()
                if self._token and not hmac.compare_digest(given, f"Basic {self._token}".encode()):
                    raise ApiRefusal(401, "Incorrect username or password")
                method = "GET" if request.method == "HEAD" else request.method
                if method != "GET":
                    # A real Ironic also delays requests while it cannot send notifications.
                    await self._conductor.wait_for_space()
                body = await handlers[method](SimRequest(request, minor, id_))
                code = {"GET": 200, "PATCH": 200, "POST": 201}.get(method, status)
                response = Response(status_code=code) if body is None else json_response(body, code)
                response.headers[VERSION] = f"1.{minor}"
            except ApiRefusal as refused:
                response = _refusal(refused.status, refused.text)
                if refused.status == 401:
                    response.headers["WWW-Authenticate"] = 'Basic realm="Baremetal API"'
            response.headers[MINIMUM], response.headers[MAXIMUM] = _LOWEST, _HIGHEST
            response.headers[REQUEST_ID] = id_
            return response

        return Route(path, answer, methods=sorted(handlers))

    async def power_state(self, call: SimRequest) -> None:
        await self.api.power(call.ident, target_of(await call.fields()), call.id)

    async def maintain(self, call: SimRequest) -> None:
        on = call.request.method == "PUT"
        reason = (await call.fields()).get("reason") if on else None
        await self.api.maintain(call.ident, on, reason, call.id)

    async def traits(self, call: SimRequest) -> Json:
        return {"traits": self._conductor.find(call.ident).traits}

    async def set_traits(self, call: SimRequest) -> None:
        traits = (await call.fields()).get("traits") if call.request.method == "PUT" else []
        await self.api.change_traits(call.ident, call.id, traits)

    async def validate(self, call: SimRequest) -> Json:
        self._conductor.find(call.ident)
        return {part: {"result": True} for part in ("boot", "deploy", "management", "network", "power")}

    async def listed(self, call: SimRequest) -> Json:
        return {"allocations": [each.as_json("+00:00") for each in self.allocations.known.values()]}

    async def allocate(self, call: SimRequest) -> Json:
        return (await self.allocations.create(await call.fields(), call.id)).as_json("+00:00")

    async def allocation(self, call: SimRequest) -> Json:
        return self.allocations.find(call.ident).as_json("+00:00")

    async def root(self, call: SimRequest) -> Json:
        version = _version(call.url)
        description = "A simulated Ironic: no metal is harmed."
        names = {"name": "OpenStack Ironic API", "description": description}
        return {**names, "default_version": version, "versions": [version]}

    async def v1(self, call: SimRequest) -> Json:
        parts = ("nodes", "allocations")
        links = {part: [{"href": f"{call.url}/v1/{part}/", "rel": "self"}] for part in parts}
        return {**_version(call.url), **links}

    async def nodes(self, call: SimRequest) -> Json:
        query = dict(call.request.query_params)
        wanted = views.asked(query, call.minor)
        found = views.page(self._conductor.nodes, wanted)
        path = call.request.url.path.removeprefix("/v1/")
        detail = path.endswith("detail") or query.get("detail", "").lower() == "true"
        answer: Json = {"nodes": [_node_json(node, wanted.fields, detail, call) for node in found]}
        if (link := views.next_link(found, wanted, call.url, path)) is not None:
            answer["next"] = link
        return answer

    async def create(self, call: SimRequest) -> Json:
        node = await self.api.create(await call.fields(), call.minor, call.id)
        return views.whole(node, call.minor, call.url)

    async def node(self, call: SimRequest) -> Json:
        fields = views.fields_of(call.request.query_params.get("fields"), call.minor)
        return _node_json(self._conductor.find(call.ident), fields, True, call)

    async def patch(self, call: SimRequest) -> Json:
        node = await self.api.patch(call.ident, await call.body(), call.id)
        return views.whole(node, call.minor, call.url)

    async def states(self, call: SimRequest) -> Json:
        return views.visible_fields(self._conductor.find(call.ident), views.STATES, call.minor)

    async def provision(self, call: SimRequest) -> None:
        more = await call.fields()
        target = target_of(more)
        if call.minor < views.VERB_SINCE.get(target, 0):
            raise not_acceptable()
        node = self._conductor.find(call.ident)
        too_old = call.minor < _ABORT_DEPLOY_SINCE
        if target == "abort" and node.provision_state == "wait call-back" and too_old:
            raise not_acceptable()
        await self.api.provision(call.ident, target, more, call.id)

    async def fault(self, call: SimRequest) -> None:
        """Plan how the node's next operation of a type fails, as in {"work": "clean", "fault": "step"}; null:
        no failure.
        """
        body = await call.fields()
        work, fault = body.get("work"), body.get("fault")
        if work not in KINDS or fault not in (*FAULTS, None):
            text = f"work is one of {', '.join(KINDS)}; fault is one of {', '.join(FAULTS)} or null"
            raise ApiRefusal(400, text)
        self._conductor.plan_fault(self._conductor.find(call.ident), work, fault)

    async def bmc(self, call: SimRequest) -> None:
        """Set the state that the node's BMC shows, as in {"says": "unreachable"}; null: the state that Ironic
        recorded.
        """
        bmc = (await call.fields()).get("says")
        if bmc not in (*BMC, None):
            raise ApiRefusal(400, f"says is one of {', '.join(BMC)} or null")
        self._power.tamper(self._conductor.find(call.ident), bmc)

    async def storm(self, call: SimRequest) -> Json:
        """Start a change on at most `count` idle nodes, as in {"target": "provide", "count": 50}; return the
        number of nodes.
        """
        body = await call.fields()
        target, count = target_of(body), body.get("count")
        if not isinstance(count, int) or count < 1:
            raise ApiRefusal(400, "count is how many nodes")
        started = 0
        for node in self._conductor.nodes.values():
            event = event_of(target, node.provision_state)
            if started == count:
                break
            busy = node.reservation is not None or node.maintenance
            if event is None or busy or node.protected or node.retired:
                continue
            self._works.begin(node, event, call.id)
            started += 1
        return {"nodes": started}


def _node_json(node: SimNode, fields: tuple[str, ...] | None, detail: bool, call: SimRequest) -> Json:
    if fields is None and detail:
        return views.whole(node, call.minor, call.url)
    return views.some(node, views.SHORT if fields is None else fields, call.minor, call.url)


async def _no_such_path(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return _refusal(problem.status_code, problem.detail)


def _refusal(status: int, text: str) -> Response:
    fault = {"faultcode": "Client", "faultstring": text, "debuginfo": None}
    return json_response({"error_message": msgspec.json.encode(fault).decode()}, status)


def _minor(request: Request) -> int:
    text = request.headers.get(VERSION, "").strip()
    if not text:
        parts = request.headers.get("OpenStack-API-Version", "").split()
        text = parts[1] if len(parts) == 2 and parts[0] == "baremetal" else _LOWEST
    if text.lower() == "latest":
        return views.MAXIMUM
    major, _, minor = text.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        raise not_acceptable(f"Invalid value for {VERSION} header")
    if major != "1" or not views.MINIMUM <= int(minor) <= views.MAXIMUM:
        why = f"Version {text} was requested but the minor version is not supported by this service"
        raise not_acceptable(f"{why}. The supported version range is: [{_LOWEST}, {_HIGHEST}].")
    return int(minor)


def _version(url: str) -> Json:
    links = [{"href": f"{url}/v1/", "rel": "self"}]
    versions = {"min_version": _LOWEST, "version": _HIGHEST}
    return {"id": "v1", "links": links, "status": "CURRENT", **versions}
