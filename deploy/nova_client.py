"""A client of a region's compute API, for tests and benchmarks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

import httpx

from deploy.placement import KeystoneUser

T = TypeVar("T")
Document = dict[str, Any]

_UNCHANGING = (0.02, 0.1)  # seconds between two checks of a condition: at first, and at most


class NovaRefused(RuntimeError):
    """Error: Nova or another service answered with a status of 400 or above."""

    def __init__(self, method: str, path: str, answer: httpx.Response) -> None:
        super().__init__(f"{method} {path}: {answer.status_code} {answer.text[:1000]}")
        self.status = answer.status_code
        self.text = answer.text


async def wait_until(condition: Callable[[], Awaitable[T | None]], what: str, seconds: float = 60.0) -> T:
    """Return the condition's first true value; raise AssertionError if there is none within `seconds`. The
    condition is tested so seldom that its tests take at most a third of the time: they load Nova, too.
    """
    deadline, pause = time.monotonic() + seconds, _UNCHANGING[0]
    while True:
        began = time.monotonic()
        if found := await condition():
            return found
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        await asyncio.sleep(max(pause, 2 * (now - began)))
        pause = min(pause * 1.5, _UNCHANGING[1])


class TokenClient:
    """Sends HTTP requests with a user's Keystone token, and renews the token when it has expired."""

    def __init__(self, user: KeystoneUser, *, connections: int = 32, timeout: float = 120.0) -> None:
        self._user = user
        self._http = httpx.AsyncClient(timeout=timeout, limits=httpx.Limits(max_connections=connections))
        self._token = ""
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def token(self, *, replacing: str = "") -> str:
        """Return a token; if the present one is `replacing`, request a new one."""
        async with self._lock:
            if self._token in ("", replacing):
                domain = {"id": "default"}
                user = {"name": self._user.username, "password": self._user.password, "domain": domain}
                identity = {"methods": ["password"], "password": {"user": user}}
                scope = {"project": {"name": self._user.project, "domain": domain}}
                body = {"auth": {"identity": identity, "scope": scope}}
                answer = await self._http.post(f"{self._user.auth_url}/auth/tokens", json=body)
                answer.raise_for_status()
                self._token = answer.headers["X-Subject-Token"]
            return self._token

    async def request(
        self, method: str, url: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """Send a request and return the response; raise `NovaRefused` for a status of 400 or above."""
        token = await self.token()
        for _ in range(2):
            sent = {"X-Auth-Token": token, **(headers or {})}
            answer = await self._http.request(method, url, json=body, headers=sent)
            if answer.status_code != 401:
                break
            token = await self.token(replacing=token)
        if answer.status_code >= 400:
            raise NovaRefused(method, url, answer)
        return answer


class NovaClient:
    """A client of Nova's compute API with an administrator's rights."""

    def __init__(self, http: TokenClient, url: str, *, image: str, flavor: str) -> None:
        self.http = http
        self.url = url
        self.image = image
        self.flavor = flavor  # the default flavor of servers

    async def call(self, method: str, path: str, body: Any = None, version: str = "latest") -> Document:
        headers = {"OpenStack-API-Version": f"compute {version}"}
        answer = await self.http.request(method, f"{self.url}{path}", body, headers)
        return dict(answer.json()) if answer.content else {}

    # Servers

    async def boot(
        self, name: str = "server", *, flavor: str = "", hints: Document | None = None, **more: Any
    ) -> str:
        """Request a server and return its id; `more` are fields of `server`, such as availability_zone."""
        return str((await self._boot({"name": name, **more}, flavor, hints))["id"])

    async def boot_many(self, count: int, **more: Any) -> list[str]:
        """Request several servers at once (a multi-create) and return their ids."""
        fields = {"name": "server", "min_count": count, "return_reservation_id": True, **more}
        reservation = (await self._boot(fields, "", None))["reservation_id"]
        found = await self.call("GET", f"/servers/detail?reservation_id={reservation}&all_tenants=1")
        return [server["id"] for server in found["servers"]]

    async def _boot(self, fields: Document, flavor: str, hints: Document | None) -> Document:
        server = {"imageRef": self.image, "flavorRef": flavor or self.flavor, "networks": "none", **fields}
        body: Document = {"server": server}
        if hints:
            body["os:scheduler_hints"] = hints
        made = await self.call("POST", "/servers", body)
        return dict(made.get("server", made))

    async def server(self, server: str) -> Document:
        return dict((await self.call("GET", f"/servers/{server}"))["server"])

    async def servers(self, **filters: str) -> list[Document]:
        query = "&".join(f"{name}={value}" for name, value in ({"all_tenants": "1"} | filters).items())
        return list((await self.call("GET", f"/servers/detail?{query}"))["servers"])

    async def host(self, server: str) -> str:
        return str((await self.server(server))["OS-EXT-SRV-ATTR:host"] or "")

    async def reaches(self, server: str, status: str, *, seconds: float = 60.0) -> Document:
        """Wait until the server has this status and no task in progress.

        Raise AssertionError with Nova's fault if the status becomes ERROR instead.
        """
        found: Document = {}

        async def is_there() -> bool:
            nonlocal found
            found = await self.server(server)
            if found["status"] == "ERROR" != status:
                raise AssertionError(f"{server} is in ERROR: {found.get('fault')}")
            return found["status"] == status and not found["OS-EXT-STS:task_state"]

        try:
            await wait_until(is_there, f"{server} is {status}", seconds)
        except AssertionError as late:
            state = {name: found.get(name) for name in ("status", "OS-EXT-STS:task_state", "fault")}
            raise AssertionError(f"{late}; now {state} on {found.get('OS-EXT-SRV-ATTR:host')}") from None
        return found

    async def active(self, *servers: str, seconds: float = 60.0) -> list[Document]:
        return [await self.reaches(server, "ACTIVE", seconds=seconds) for server in servers]

    async def delete(self, *servers: str, seconds: float = 60.0) -> None:
        """Delete the servers, and wait until Nova lists none; fail if for `seconds` none disappears."""
        await asyncio.gather(*(self.call("DELETE", f"/servers/{server}") for server in servers))
        left = {*servers}

        async def fewer() -> bool:
            listed = await self.call("GET", "/servers?all_tenants=1")
            before, now = len(left), {server["id"] for server in listed["servers"]}
            left.intersection_update(now)
            return len(left) < before

        while left:
            await wait_until(fewer, f"{len(left)} servers are deleted, such as {min(left)}", seconds)

    async def action(self, server: str, name: str, body: Any = None, version: str = "latest") -> Document:
        return await self.call("POST", f"/servers/{server}/action", {name: body}, version)

    async def resize(self, server: str, flavor: str) -> Document:
        await self.action(server, "resize", {"flavorRef": flavor})
        return await self.reaches(server, "VERIFY_RESIZE")

    async def cold_migrate(self, server: str) -> Document:
        await self.action(server, "migrate")
        return await self.reaches(server, "VERIFY_RESIZE")

    async def confirm(self, server: str) -> Document:
        await self.action(server, "confirmResize")
        return await self.reaches(server, "ACTIVE")

    async def revert(self, server: str) -> Document:
        await self.action(server, "revertResize")
        return await self.reaches(server, "ACTIVE")

    async def live_migrate(self, server: str, host: str | None = None) -> Document:
        """Live-migrate the server and wait until it is on another host."""
        source = await self.host(server)
        await self.action(server, "os-migrateLive", {"host": host, "block_migration": "auto"})
        return await self._leaves(server, source)

    async def evacuate(self, server: str, host: str | None = None) -> Document:
        """Evacuate a server to another host; its present host must be down (`NovaRegion.crash_host`)."""
        source = await self.host(server)
        # From 2.95 on, Nova stops the server at its new host.
        await self.action(server, "evacuate", {"host": host} if host else {}, "2.94")
        return await self._leaves(server, source)

    async def _leaves(self, server: str, source: str) -> Document:
        async def has_left() -> bool:
            migrations = await self.migrations(server)
            if migrations and migrations[0]["status"] in ("error", "failed", "cancelled"):
                raise AssertionError(f"the migration of {server} ended as {migrations[0]['status']}")
            at = await self.host(server)
            return at not in ("", source) and migrations[0]["status"] in ("completed", "done")

        await wait_until(has_left, f"{server} leaves {source}")
        return await self.reaches(server, "ACTIVE")

    async def migrations(self, server: str) -> list[Document]:
        """Return the migrations of a server, the newest first."""
        found = await self.call("GET", f"/os-migrations?instance_uuid={server}")
        return list(found["migrations"])

    async def shelve(self, server: str) -> Document:
        """Shelve the server, and offload it from its host."""
        await self.action(server, "shelve")
        return await self.reaches(server, "SHELVED_OFFLOADED")

    async def unshelve(self, server: str) -> Document:
        await self.action(server, "unshelve")
        return await self.reaches(server, "ACTIVE")

    # The cloud

    async def create_flavor(self, name: str, **size: int) -> str:
        """Create a flavor and return its id; the sizes are vcpus, ram (MB) and disk (GB)."""
        flavor = {"name": name, "vcpus": 1, "ram": 512, "disk": 1} | size
        return str((await self.call("POST", "/flavors", {"flavor": flavor}))["flavor"]["id"])

    async def create_server_group(self, name: str, policy: str) -> str:
        group = {"name": name, "policy": policy}
        made = await self.call("POST", "/os-server-groups", {"server_group": group})
        return str(made["server_group"]["id"])

    async def create_aggregate(self, name: str, zone: str | None, *hosts: str, **metadata: str) -> int:
        body = {"aggregate": {"name": name, "availability_zone": zone}}
        made = int((await self.call("POST", "/os-aggregates", body))["aggregate"]["id"])
        path = f"/os-aggregates/{made}/action"
        for host in hosts:
            await self.call("POST", path, {"add_host": {"host": host}})
        if metadata:
            await self.call("POST", path, {"set_metadata": {"metadata": metadata}})
        return made

    async def compute_services(self) -> dict[str, Document]:
        found = await self.call("GET", "/os-services?binary=nova-compute")
        return {service["host"]: service for service in found["services"]}

    async def force_down(self, host: str, is_down: bool = True) -> None:
        """Mark the nova-compute service of a host as forced down, or remove this mark."""
        service = (await self.compute_services())[host]["id"]
        await self.call("PUT", f"/os-services/{service}", {"forced_down": is_down})

    async def enable(self, host: str, is_enabled: bool = True) -> None:
        """Enable or disable scheduling to the host."""
        service = (await self.compute_services())[host]["id"]
        status = "enabled" if is_enabled else "disabled"
        await self.call("PUT", f"/os-services/{service}", {"status": status})
