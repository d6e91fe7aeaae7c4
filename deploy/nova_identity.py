"""Creates the users and the service catalogue of a Nova region in its Keystone."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from deploy.keystone import REGION, KeystoneServer
from deploy.nova_client import TokenClient
from deploy.placement import KeystoneUser

SERVICE_USERS = {"nova": ("admin", "service"), "placement": ("service",)}


class RegionUsers:
    """Writes to a Keystone as its administrator."""

    def __init__(self, http: TokenClient, keystone: KeystoneServer) -> None:
        self._http = http
        self._keystone = keystone

    async def _create(self, collection: str, singular: str, fields: Mapping[str, object]) -> str:
        answer = await self._http.request("POST", f"{self._keystone.url}/{collection}", {singular: fields})
        return str(answer.json()[singular]["id"])

    async def _named(self, collection: str) -> dict[str, str]:
        answer = await self._http.request("GET", f"{self._keystone.url}/{collection}")
        return {item["name"]: item["id"] for item in answer.json()[collection]}

    async def make_users(self) -> dict[str, KeystoneUser]:
        """Create the users of OpenStack's services in the project `service`; return them by name."""
        roles = await self._named("roles")
        for name in {"admin", "service"} - set(roles):
            roles[name] = await self._create("roles", "role", {"name": name})
        projects = await self._named("projects")
        project = projects.get("service") or await self._create(
            "projects", "project", {"name": "service", "domain_id": "default"}
        )
        made = {}
        for name, names in SERVICE_USERS.items():
            password = secrets.token_hex(8)
            fields = {"name": name, "password": password, "domain_id": "default"}
            user = await self._create("users", "user", fields)
            for role in names:
                path = f"/projects/{project}/users/{user}/roles/{roles[role]}"
                await self._http.request("PUT", f"{self._keystone.url}{path}")
            made[name] = KeystoneUser(self._keystone.url, name, password, "service")
        return made

    async def make_endpoints(self, urls: Mapping[str, str]) -> None:
        """Create the endpoints of services in Keystone's catalogue; `urls` are by type of service."""
        for kind, url in urls.items():
            service = await self._create("services", "service", {"type": kind, "name": kind})
            for interface in ("public", "internal"):
                await self._create(
                    "endpoints",
                    "endpoint",
                    {"service_id": service, "interface": interface, "url": url, "region_id": REGION},
                )
