"""Reads all contents of a Placement through its API, with parallel requests."""

import asyncio
import ssl
import uuid
from collections.abc import Awaitable, Callable, Iterable
from itertools import count
from typing import Any, Self, TypeVar

import httpx
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from berth.kit.placement_contents import ImportedConsumer, ImportedProvider, PlacementContents
from bus.errors import Unavailable
from bus.masking import masked
from bus.reports import Inventory

T = TypeVar("T")


Progress = Callable[[str, int, int], None]  # type of object, number done, total


AT_ONCE = 16


NEWEST = 39  # newest microversion that this client knows


_OLDEST = 14  # older versions have no provider trees


_TIMEOUT = 60.0


_AGAIN = (502, 503, 504)


_NOBODY = "00000000-0000-0000-0000-000000000000"  # Placement's value for an unknown project or user


def no_report(label: str, done: int, total: int) -> None:
    """Do nothing: the progress callback of callers that show no progress."""


class Rejected(Exception):
    """Error: the Placement server refused a request; has HTTP status, reason and Placement's error code."""

    def __init__(self, status: int, why: str, code: str = "") -> None:
        super().__init__(f"{why} ({status})")
        self.status = status
        self.code = code


class _Away(Exception):
    """Error: the Placement server cannot be reached now."""


class PlacementClient:
    """A client of a Placement API, at the newest microversion that client and server know; repeats a request
    up to five times if the server cannot be reached."""

    def __init__(
        self, url: str, token: str, cacert: str = "", *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self.place = masked(self.url)  # the URL without its password
        self.minor = 0
        verify = ssl.create_default_context(cafile=cacert) if cacert else True
        limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
        headers = {"accept": "application/json"} | ({"x-auth-token": token} if token else {})
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            verify=verify,
            limits=limits,
            timeout=_TIMEOUT,
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        found = await self._get("/")
        try:
            versions = [entry["max_version"] for entry in found["versions"] if entry["id"] == "v1.0"]
            newest = int(versions[0].partition(".")[2])
        except (KeyError, IndexError, TypeError, ValueError):
            raise Unavailable(f"{self.place} does not answer as a Placement") from None
        if newest < _OLDEST:
            raise Unavailable(f"{self.place} knows versions up to 1.{newest}; at least 1.{_OLDEST} is needed")
        self.minor = min(newest, NEWEST)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.aclose()

    @retry(
        retry=retry_if_exception_type(_Away),
        wait=wait_random_exponential(0.2, max=5.0),
        stop=stop_after_attempt(6),
        reraise=True,
    )
    async def _send(self, method: str, path: str, body: Any, minor: int) -> httpx.Response:
        version = {"openstack-api-version": f"placement 1.{minor}"}
        try:
            answer = await self._http.request(method, path, json=body, headers=version)
        except httpx.TransportError as problem:
            raise _Away(f"{type(problem).__name__} {problem}".strip()) from None
        if answer.status_code in _AGAIN:
            raise _Away(f"{answer.status_code} {answer.reason_phrase}")
        return answer

    async def request(self, method: str, path: str, body: Any = None, *, minor: int | None = None) -> Any:
        """Return a response's decoded JSON body, None if empty; raise `Rejected` if the server refuses.

        `minor` is the microversion 1.`minor`; None: the newest that client and server know.
        """
        try:
            answer = await self._send(method, path, body, self.minor if minor is None else minor)
        except _Away as away:
            raise Unavailable(f"{self.place} cannot be reached: {away}") from None
        if answer.is_success:
            try:
                return answer.json() if answer.content else None
            except ValueError:
                raise Unavailable(f"{self.place} does not answer as a Placement") from None
        if answer.status_code == 401:
            raise Unavailable(f"{self.place} does not accept the token")
        if answer.status_code == 403:
            raise Unavailable(f"{self.place} does not let this token {method} {path}: {_reason(answer)}")
        raise Rejected(answer.status_code, _reason(answer), _code(answer))

    async def _get(self, path: str) -> Any:
        """GET a URL that every Placement server has and return the body; raise Unavailable for status 404."""
        found = await self._find(path)
        if found is None:
            raise Unavailable(f"{self.place} does not answer as a Placement: there is nothing at {path}")
        return found

    async def _find(self, path: str) -> Any:
        """GET a URL of the Placement API, and return the response's body, or None for status 404."""
        try:
            return await self.request("GET", path)
        except Rejected as why:
            if why.status == 404:
                return None
            raise Unavailable(f"{self.place} cannot be read: GET {path}: {why}") from None

    async def world(self, progress: Progress = no_report) -> PlacementContents:
        """Read all contents of a Placement; objects that are deleted during the read are left out."""
        world = PlacementContents()
        world.traits = set((await self._get("/traits?name=startswith:CUSTOM_"))["traits"])
        known = (await self._get("/resource_classes"))["resource_classes"]
        world.classes = {entry["name"] for entry in known if entry["name"].startswith("CUSTOM_")}
        listed = (await self._get("/resource_providers"))["resource_providers"]
        holders: set[str] = set()

        async def provider(entry: Any) -> None:
            allocated = await self._find(f"/resource_providers/{entry['uuid']}/allocations")
            if allocated is not None and (found := await self._provider(entry)) is not None:
                world.providers[found.id] = found
                holders.update(allocated["allocations"])

        await each_in_parallel(listed, provider, "providers read", progress)

        async def consumer(id_: str) -> None:
            if (found := await self.consumer(id_)) is not None:
                world.consumers[id_] = found

        await each_in_parallel(sorted(holders), consumer, "consumers read", progress)
        return world

    async def provider(self, id_: str) -> tuple[ImportedProvider, int] | None:
        """Return a provider and its generation, or None if the provider does not exist."""
        entry = await self._find(f"/resource_providers/{id_}")
        found = None if entry is None else await self._provider(entry)
        return None if found is None else (found, int(entry["generation"]))

    async def _provider(self, entry: Any) -> ImportedProvider | None:
        """Read a provider's inventories, traits and aggregates; return None if it no longer exists."""
        parts = {}
        for part in ("inventories", "traits", "aggregates"):
            if (found := await self._find(f"/resource_providers/{entry['uuid']}/{part}")) is None:
                return None
            parts[part] = found[part]
        parent = entry["parent_provider_uuid"]
        return ImportedProvider(
            id=same(entry["uuid"]),
            name=entry["name"],
            parent=same(parent) if parent else None,
            inventories={name: Inventory(**fields) for name, fields in parts["inventories"].items()},
            traits=frozenset(parts["traits"]),
            aggregates=frozenset(map(same, parts["aggregates"])),
        )

    async def consumer(self, id_: str) -> ImportedConsumer | None:
        """Return a consumer, or None if it has no allocations."""
        found = await self._find(f"/allocations/{id_}")
        if found is None or not found["allocations"]:
            return None
        kind = found.get("consumer_type")
        return ImportedConsumer(
            id=same(id_),
            project=found.get("project_id", _NOBODY),
            user=found.get("user_id", _NOBODY),
            type=None if kind == "unknown" else kind,
            allocations={same(by): held["resources"] for by, held in found["allocations"].items()},
            generation=found.get("consumer_generation", 0),
        )


def same(id_: str) -> str:
    """Return a uuid in the form that berth uses: lower case, with dashes."""
    return str(uuid.UUID(id_))


def _reason(answer: httpx.Response) -> str:
    detail = _error(answer).get("detail", answer.reason_phrase)
    return " ".join(str(detail).split("\n\n")[-1].split())[:500]


def _code(answer: httpx.Response) -> str:
    return str(_error(answer).get("code", ""))


def _error(answer: httpx.Response) -> dict[str, Any]:
    try:
        return dict(answer.json()["errors"][0])
    except (ValueError, KeyError, IndexError, TypeError):
        return {}


async def each_in_parallel(
    items: Iterable[T], work: Callable[[T], Awaitable[None]], label: str = "", progress: Progress = no_report
) -> None:
    """Call a coroutine function with each item, at most 16 at the same time, and report how many are done."""
    waiting = list(items)
    ahead, done = iter(waiting), count(1)  # shared by the workers

    async def worker() -> None:
        for item in ahead:
            await work(item)
            progress(label, next(done), len(waiting))

    progress(label, 0, len(waiting))
    async with asyncio.TaskGroup() as group:
        for _ in range(min(AT_ONCE, len(waiting))):
            group.create_task(worker())
