"""A small Ironic: nodes in a dict, and the read part of its REST API with the behaviour of the real one.

Pages end at the server's limit, an unknown marker is a 404, times cannot be selected as fields, a node that
was never updated has no update time, and every response names the supported versions.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx

from ironic_sync.api import FIELD_SINCE, MAXIMUM, VERSION, IronicApi
from ironic_sync.openstack import Access

Handler = Callable[[httpx.Request], httpx.Response | None]
UNCHOSEN = ("created_at", "updated_at")


def node_number(number: int) -> str:
    return str(UUID(int=number))


class FakeIronic:
    def __init__(self, minor: int = 115, most: int = 1000, nulls_first: bool = False) -> None:
        self.minor = minor
        self.most = most
        self.nulls_first = nulls_first  # sorted downwards, as PostgreSQL does
        self.nodes: dict[str, dict[str, Any]] = {}
        self.requests: list[httpx.Request] = []
        self.before: Handler = lambda request: None  # may answer instead, or change the nodes first
        self.proxy: Handler = lambda request: None  # may answer in the way to Ironic
        self.now = 1_800_000_000

    @property
    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self)

    def api(self, **more: Any) -> IronicApi:
        return IronicApi(Access(url="http://ironic.test"), transport=self.transport, **more)

    def have(self, number: int, **more: Any) -> str:
        self.now += 1
        uuid = node_number(number)
        self.nodes[uuid] = {
            "uuid": uuid, "name": f"n{number}", "resource_class": "gold", "provision_state": "available",
            "power_state": "power off", "maintenance": False, "instance_uuid": None, "traits": [],
            "conductor_group": "", "owner": None, "shard": None, "properties": {}, "extra": {},
            "created_at": self._time(), "updated_at": None, **more,
        }  # fmt: skip
        return uuid

    def change(self, number: int, **more: Any) -> None:
        self.now += 1
        self.nodes[node_number(number)] |= {"updated_at": self._time()} | more

    def paths(self, method: str = "GET") -> list[str]:
        versioned = (request for request in self.requests if VERSION in request.headers)
        return [request.url.path for request in versioned if request.method == method]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        stopped = self.proxy(request)
        if stopped is not None:
            return stopped
        answer = self.before(request) or self._answer(request)
        answer.headers[MAXIMUM] = f"1.{self.minor}"
        return answer

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path in ("/", "/v1"):
            return httpx.Response(200, json={"version": {"version": f"1.{self.minor}"}})
        asked = int(request.headers[VERSION].partition(".")[2])
        if asked > self.minor:
            return fault(406, f"Version 1.{asked} was requested but is not supported")
        params = dict(request.url.params)
        fields = params["fields"].split(",") if "fields" in params else None
        for field in fields or ():
            if field in UNCHOSEN:
                return fault(400, f"Field {field} is not a valid field.")
            if FIELD_SINCE.get(field, 0) > asked:
                return fault(406, f"Request not acceptable: {field}")
        if path in ("/v1/nodes", "/v1/nodes/detail"):
            return self._list(params, fields)
        found = self.nodes.get(path.rpartition("/")[2])
        if found is None:
            return fault(404, "Node could not be found.")
        return httpx.Response(200, json=_some(found, fields))

    def _list(self, params: dict[str, str], fields: list[str] | None) -> httpx.Response:
        listed = list(self.nodes.values())
        key, down = params.get("sort_key"), params.get("sort_dir") == "desc"
        if key:
            none = "~" if self.nulls_first else ""
            listed = sorted(listed[::-1] if down else listed, key=lambda one: one[key] or none, reverse=down)
        for name in ("owner", "resource_class", "conductor_group"):
            if name in params:
                listed = [one for one in listed if one[name] == params[name]]
        if "shard" in params:
            listed = [one for one in listed if one["shard"] in params["shard"].split(",")]
        marker = params.get("marker")
        if marker is not None:
            if marker not in self.nodes:
                return fault(404, f"Node {marker} could not be found.")
            at = next((i for i, one in enumerate(listed) if one["uuid"] == marker), len(listed))
            listed = listed[at + 1 :]
        limit = min(int(params.get("limit", self.most)), self.most)
        page = listed[:limit]
        answer: dict[str, Any] = {"nodes": [_some(one, fields) for one in page]}
        if len(page) == limit:  # as Ironic does: perhaps nothing follows
            answer["next"] = "http://ironic.internal:6385/v1/nodes?marker=..."
        return httpx.Response(200, json=answer)

    def _time(self) -> str:
        return datetime.fromtimestamp(self.now, UTC).isoformat()


def fault(status: int, says: str) -> httpx.Response:
    return httpx.Response(status, json={"error_message": json.dumps({"faultstring": says})})


def _some(node: dict[str, Any], fields: list[str] | None) -> dict[str, Any]:
    return node if fields is None else {field: node.get(field) for field in fields}
