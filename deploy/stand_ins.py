"""Stand-ins for Glance and Neutron: they answer Nova's requests from memory, without authentication.

    python -m deploy.stand_ins PORT

Images are at `/image`, networking is at `/network`. There is one image, and one network with a subnet; ports
are made, bound and deleted as Nova asks. Unknown requests get 404 and are written to standard error.
"""

from __future__ import annotations

import sys
import uuid
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Item = dict[str, Any]

IMAGE, NETWORK, SUBNET = (
    str(uuid.uuid5(uuid.NAMESPACE_DNS, name)) for name in ("image", "network", "subnet")
)
SECURITY_GROUP = str(uuid.uuid5(uuid.NAMESPACE_DNS, "security-group"))
DATE = "2026-01-01T00:00:00Z"
EXTENSIONS = ("binding", "binding-extended", "provider", "security-group", "external-net", "quotas")
SINGULAR = {
    "networks": "network", "subnets": "subnet", "ports": "port", "security-groups": "security_group",
    "floatingips": "floatingip",
}  # fmt: skip


def image(**fields: Any) -> Item:
    return {
        "id": IMAGE, "name": "cirros", "status": "active", "visibility": "public", "protected": False,
        "container_format": "bare", "disk_format": "raw", "size": 1000, "checksum": "0" * 32, "min_disk": 0,
        "min_ram": 0, "owner": None, "tags": [], "created_at": DATE, "updated_at": DATE, "os_hidden": False,
        "schema": "/v2/schemas/image", **fields,
    }  # fmt: skip


class Images:
    """Answers requests of Glance's API, version 2."""

    def __init__(self) -> None:
        self._images: dict[str, Item] = {IMAGE: image()}

    def routes(self) -> list[Route]:
        return [
            *(Route(path, self.versions) for path in ("/image", "/image/")),
            Route("/image/v2/schemas/image", self.schema),
            Route("/image/v2/images", self.collection, methods=["GET", "POST"]),
            Route("/image/v2/images/{id}", self.one, methods=["GET", "DELETE", "PATCH"]),
            Route("/image/v2/images/{id}/file", self.data, methods=["PUT"]),
            Route("/image/v2/images/{id}/locations", self.locations),
        ]

    async def versions(self, request: Request) -> Response:
        link = {"rel": "self", "href": f"{str(request.url).rstrip('/')}/v2/"}
        versions = [{"id": "v2.17", "status": "CURRENT", "links": [link]}]
        return JSONResponse({"versions": versions}, 300)

    async def schema(self, _: Request) -> Response:
        # glanceclient only accepts the names of properties that the schema has.
        properties = {name: {"is_base": name != "schema"} for name in image()}
        return JSONResponse({"name": "image", "properties": properties, "additionalProperties": {}})

    async def collection(self, request: Request) -> Response:
        if request.method == "GET":
            return JSONResponse({"images": list(self._images.values())})
        given = await request.json()
        made = image(**{"id": str(uuid.uuid4()), "status": "queued", "size": None, **given})
        self._images[made["id"]] = made
        return JSONResponse(made, 201)

    async def one(self, request: Request) -> Response:
        key = request.path_params["id"]
        if key not in self._images:
            return Response(status_code=404)
        if request.method == "DELETE":
            del self._images[key]
            return Response(status_code=204)
        if request.method == "PATCH":
            for change in await request.json():
                self._images[key][change["path"].lstrip("/")] = change.get("value")
        return JSONResponse(self._images[key])

    async def data(self, request: Request) -> Response:
        if (found := self._images.get(request.path_params["id"])) is None:
            return Response(status_code=404)
        found |= {"status": "active", "size": len(await request.body())}
        return Response(status_code=204)

    async def locations(self, _: Request) -> Response:
        return JSONResponse([])


class Networking:
    """Answers requests of Neutron's API, version 2.0; query parameters select objects with equal fields."""

    def __init__(self) -> None:
        self._items: dict[str, dict[str, Item]] = defaultdict(dict)
        self._bindings: dict[str, dict[str, Item]] = defaultdict(dict)
        self._addresses = 0
        self._add("networks", {
            "id": NETWORK, "name": "private", "status": "ACTIVE", "subnets": [SUBNET], "mtu": 1450,
            "shared": True, "admin_state_up": True, "router:external": False, "port_security_enabled": False,
            "tenant_id": "", "project_id": "", "provider:network_type": "vxlan",
            "provider:physical_network": None, "provider:segmentation_id": 1,
        })  # fmt: skip
        self._add("subnets", {
            "id": SUBNET, "name": "private", "network_id": NETWORK, "cidr": "10.0.0.0/8", "ip_version": 4,
            "gateway_ip": "10.0.0.1", "dns_nameservers": [], "host_routes": [], "enable_dhcp": False,
        })  # fmt: skip
        self._add("security-groups", {
            "id": SECURITY_GROUP, "name": "default", "description": "", "security_group_rules": [],
        })  # fmt: skip

    def _add(self, kind: str, item: Item) -> None:
        self._items[kind][item["id"]] = item

    def routes(self) -> list[Route]:
        return [
            *(Route(path, self.versions) for path in ("/network", "/network/")),
            Route("/network/v2.0/extensions", self.extensions),
            Route("/network/v2.0/quotas/{project}", self.quota),
            Route("/network/v2.0/ports/{id}/bindings", self.bind, methods=["GET", "POST"]),
            Route("/network/v2.0/ports/{id}/bindings/{host}", self.binding, methods=["GET", "DELETE"]),
            Route("/network/v2.0/ports/{id}/bindings/{host}/activate", self.activate, methods=["PUT"]),
            Route("/network/v2.0/{kind}", self.collection, methods=["GET", "POST"]),
            Route("/network/v2.0/{kind}/{id}", self.one, methods=["GET", "PUT", "DELETE"]),
        ]

    async def versions(self, request: Request) -> Response:
        link = {"rel": "self", "href": f"{str(request.url).rstrip('/')}/v2.0/"}
        return JSONResponse({"versions": [{"id": "v2.0", "status": "CURRENT", "links": [link]}]})

    async def extensions(self, _: Request) -> Response:
        return JSONResponse({"extensions": [{"alias": name, "name": name} for name in EXTENSIONS]})

    async def quota(self, _: Request) -> Response:
        return JSONResponse({"quota": {"port": -1, "network": -1, "security_group": -1, "floatingip": -1}})

    async def collection(self, request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind not in SINGULAR:
            return unknown(request)
        if request.method == "POST":
            made = self._port((await request.json())["port"])
            return JSONResponse({"port": made}, 201)
        found = [item for item in self._items[kind].values() if self._matches(item, request)]
        return JSONResponse({kind.replace("-", "_"): found})

    @staticmethod
    def _matches(item: Item, request: Request) -> bool:
        filters: dict[str, list[str]] = defaultdict(list)
        for name, value in request.query_params.multi_items():
            filters[name].append(value.lower())
        return all(str(item[name]).lower() in values for name, values in filters.items() if name in item)

    def _port(self, given: Item) -> Item:
        self._addresses += 1
        high, low = divmod(self._addresses, 250)
        made = {
            "id": str(uuid.uuid4()), "name": "", "status": "ACTIVE", "admin_state_up": True, "device_id": "",
            "device_owner": "", "network_id": NETWORK, "tenant_id": "", "security_groups": [SECURITY_GROUP],
            "mac_address": f"fa:16:3e:00:{high % 256:02x}:{low:02x}", "binding:host_id": "",
            "fixed_ips": [{"subnet_id": SUBNET, "ip_address": f"10.1.{high}.{low + 2}"}],
            "binding:vnic_type": "normal", "binding:vif_type": "ovs", "binding:vif_details": {},
            "binding:profile": {}, "resource_request": None, **given,
        }  # fmt: skip
        self._add("ports", made)
        return made

    async def one(self, request: Request) -> Response:
        kind, key = request.path_params["kind"], request.path_params["id"]
        if kind not in SINGULAR:
            return unknown(request)
        if (found := self._items[kind].get(key)) is None:
            return JSONResponse({"NeutronError": {"type": "PortNotFound", "message": key, "detail": ""}}, 404)
        if request.method == "DELETE":
            del self._items[kind][key]
            return Response(status_code=204)
        if request.method == "PUT":
            found |= (await request.json())[SINGULAR[kind]]
        return JSONResponse({SINGULAR[kind]: found})

    async def bind(self, request: Request) -> Response:
        bindings = self._bindings[request.path_params["id"]]
        if request.method == "GET":
            return JSONResponse({"bindings": list(bindings.values())})
        given = (await request.json())["binding"]
        made = {
            "vif_type": "ovs",
            "vif_details": {},
            "vnic_type": "normal",
            "profile": {},
            "status": "INACTIVE",
        }
        bindings[given["host"]] = made | given
        return JSONResponse({"binding": bindings[given["host"]]}, 201)

    async def binding(self, request: Request) -> Response:
        bindings, host = self._bindings[request.path_params["id"]], request.path_params["host"]
        if host not in bindings:
            return JSONResponse({"NeutronError": {"type": "NotFound", "message": host, "detail": ""}}, 404)
        if request.method == "DELETE":
            del bindings[host]
            return Response(status_code=204)
        return JSONResponse({"binding": bindings[host]})

    async def activate(self, request: Request) -> Response:
        port, host = request.path_params["id"], request.path_params["host"]
        for name, binding in self._bindings[port].items():
            binding["status"] = "ACTIVE" if name == host else "INACTIVE"
        self._items["ports"][port]["binding:host_id"] = host
        return JSONResponse({"binding": self._bindings[port][host]})


def unknown(request: Request) -> Response:
    print("unknown request:", request.method, request.url, file=sys.stderr, flush=True)
    return Response(status_code=404)


async def root(_: Request) -> Response:
    return JSONResponse({})


async def anything(request: Request) -> Response:
    return unknown(request)


def application() -> Callable[..., Any]:
    routes = [Route("/", root), *Images().routes(), *Networking().routes()]
    every = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    return Starlette(routes=[*routes, Route("/{rest:path}", anything, methods=every)])


def main() -> None:
    import uvicorn

    uvicorn.run(application(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
