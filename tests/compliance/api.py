"""A client of the Placement API for tests: requests in one line, and deletion of a server's contents."""

from __future__ import annotations

import json
from typing import Any

from tests.compliance.wire import HttpAnswer, HttpWire

NEWEST = "1.39"


class PreparationRefused(AssertionError):
    """The server did not do what the test's preparations needed."""


class PlacementApi:
    def __init__(self, base_url: str, *, token: str = "admin", version: str = NEWEST) -> None:
        self.wire = HttpWire(base_url)
        self.headers = {"x-auth-token": token, "accept": "application/json"}
        self.version = version

    def __call__(self, method: str, path: str, body: Any = None, *, version: str = "") -> HttpAnswer:
        """Whatever is answered."""
        headers = {**self.headers, "openstack-api-version": f"placement {version or self.version}"}
        if body is None:
            return self.wire.send(method, self.wire.prefix + path, headers)
        headers["content-type"] = "application/json"
        return self.wire.send(method, self.wire.prefix + path, headers, json.dumps(body).encode())

    def do(self, method: str, path: str, body: Any = None, *, version: str = "") -> HttpAnswer:
        answer = self(method, path, body, version=version)
        if answer.status >= 300:
            raise PreparationRefused(f"{method} {path} {body or ''}: {answer.status} {answer.text[:500]}")
        return answer

    def get(self, path: str, *, version: str = "") -> Any:
        return self.do("GET", path, version=version).json

    def close(self) -> None:
        self.wire.close()


def empty(api: PlacementApi) -> None:
    """Leave nothing but the standard classes and traits."""
    providers = api.get("/resource_providers")["resource_providers"]
    children: dict[str, list[str]] = {}
    for provider in providers:
        children.setdefault(provider["parent_provider_uuid"], []).append(provider["uuid"])
    order = list(children.get(None, ()))  # type: ignore[call-overload]
    for uuid in order:  # grows as it is read: parents before children
        order += children.get(uuid, ())
    for uuid in reversed(order):
        if api("DELETE", f"/resource_providers/{uuid}").status == 204:
            continue
        for consumer in api.get(f"/resource_providers/{uuid}/allocations")["allocations"]:
            api.do("DELETE", f"/allocations/{consumer}")
        api.do("DELETE", f"/resource_providers/{uuid}")
    for trait in api.get("/traits?name=startswith:CUSTOM_")["traits"]:
        api.do("DELETE", f"/traits/{trait}")
    for known in api.get("/resource_classes")["resource_classes"]:
        if known["name"].startswith("CUSTOM_"):
            api.do("DELETE", f"/resource_classes/{known['name']}")
