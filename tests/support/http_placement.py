"""A Placement with its HTTP API but without a server, and functions that send requests to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from starlette.applications import Starlette

from berth.features import http_rules
from berth.placement_http import api_parts
from placement_worker import Placement
from placement_worker.http import Options, http_app
from placement_worker.http.access import AccessPolicy
from tests.support.placement_builders import a_placement
from tests.support.waiting import patience

LATEST = 39


@dataclass
class HttpPlacement:
    app: Starlette
    client: httpx.AsyncClient
    placement: Placement

    async def __call__(
        self, method: str, path: str, body: Any = None, *, minor: int = LATEST, token: str = "admin",
        **headers: str,
    ) -> httpx.Response:  # fmt: skip
        """Send a request and return the response; names of `headers` have _ in place of -."""
        sent = {"openstack-api-version": f"placement 1.{minor}", "x-auth-token": token}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.request(method, path, json=body, headers=sent)

    async def made(self, path: str, body: Any = None, *, minor: int = LATEST, method: str = "PUT") -> Any:
        answer = await self(method, path, body, minor=minor)
        assert answer.status_code in (200, 201, 204), answer.text
        return answer.json() if answer.content else None

    async def provider(self, uuid: str, *, parent: str | None = None, **totals: int) -> None:
        """Create a provider with its id as its name, and the given total of each resource class."""
        await self.made(
            "/resource_providers", {"name": uuid, "uuid": uuid, "parent_provider_uuid": parent}, method="POST"
        )
        if totals:
            inventories = {name: {"total": total} for name, total in totals.items()}
            await self.made(
                f"/resource_providers/{uuid}/inventories",
                {"resource_provider_generation": 0, "inventories": inventories},
            )


@asynccontextmanager
async def an_api(url: str, **options: Any) -> AsyncIterator[HttpPlacement]:
    async with a_placement(url) as placement:
        policy = options.pop("policy", None) or AccessPolicy(of_features=http_rules())
        app = http_app(placement, Options(policy=policy, parts=api_parts(), **options))
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://placement") as client,
        ):
            yield HttpPlacement(app, client, placement)


def error_of(answer: httpx.Response) -> tuple[int, str, str]:
    """Return the status, code and text of a response with an error."""
    [error] = answer.json()["errors"]
    assert error["status"] == answer.status_code
    assert error["request_id"] == answer.headers["x-openstack-request-id"]
    return error["status"], error.get("code", ""), error["detail"]


def claim_in_json(
    *shares: tuple[str, dict[str, int]], generation: int | None = None, kind: str = "INSTANCE"
) -> dict[str, Any]:
    """Return a body for PUT /allocations."""
    allocations = {uuid: {"resources": resources} for uuid, resources in shares}
    owner = {"project_id": "p1", "user_id": "u1"}
    return {
        "allocations": allocations, **owner, "consumer_generation": generation, "consumer_type": kind,
    }  # fmt: skip


@dataclass
class Stream:
    """A response that does not end, such as an event stream."""

    status: int
    headers: dict[str, str]
    _parts: "asyncio.Queue[bytes]"

    async def events(self, count: int) -> list[str]:
        """Return the next `count` events, without comments."""
        found: list[str] = []
        text = ""
        while len(found) < count:
            async with patience():
                text += (await self._parts.get()).decode()
            *whole, text = text.split("\n\n")
            found += [event for event in whole if event and not event.startswith(":")]
        return found

    async def ended(self) -> None:
        async with patience():
            while await self._parts.get():
                pass


class ServedApp(Protocol):
    @property
    def app(self) -> Starlette: ...


@asynccontextmanager
async def a_stream(
    http_placement: ServedApp, path: str, query: str = "", **headers: str
) -> AsyncIterator[Stream]:
    """Send a GET request, and yield its response while it is being received."""
    parts: asyncio.Queue[bytes] = asyncio.Queue()
    started: asyncio.Future[tuple[int, dict[str, str]]] = asyncio.get_running_loop().create_future()
    left = asyncio.Event()
    sent = {"x-auth-token": "admin"} | {name.replace("_", "-"): value for name, value in headers.items()}
    scope = {
        "type": "http", "method": "GET", "path": path, "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()], "scheme": "http",
        "server": ("placement", 80),
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            results = {name.decode(): value.decode() for name, value in message["headers"]}
            started.set_result((message["status"], results))
        else:
            parts.put_nowait(message["body"])

    async with asyncio.TaskGroup() as group:
        task = group.create_task(http_placement.app(scope, receive, send))
        async with patience():
            status, results = await started
        yield Stream(status, results, parts)
        left.set()
        async with patience():
            await task
