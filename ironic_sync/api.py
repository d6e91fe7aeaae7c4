"""A client of Ironic's REST API, with one connection pool, the newest common microversion and retries."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec
import tenacity

from bus.clock import Clock, monotonic
from bus.errors import NOT_JSON, Unavailable
from ironic_sync.notifications import REQUEST_SECONDS
from ironic_sync.openstack import Access, Keystone, KeystoneRefused, KeystoneUnavailable

log = logging.getLogger(__name__)

NEWEST = (1, 115)  # the newest version that was tested; no newer one is requested
OLDEST = (1, 11)  # earlier versions do not distinguish a new node from an available one
VERSION = "X-OpenStack-Ironic-API-Version"
MAXIMUM = "X-OpenStack-Ironic-API-Maximum-Version"

READ_ATTEMPTS = 4
SHORTEST_WAIT, LONGEST_WAIT = 0.1, 5.0  # seconds between attempts
CONNECTIONS = 32
MARKERS = 10  # if so many nodes at the end of a page were all deleted, listing restarts from the beginning
PAGE = 1000  # Ironic's own limit, unless configured

# Fields that Ironic returns only with all fields, never among chosen `fields`.
WITH_ALL = frozenset({"created_at", "updated_at"})

# The minor version that introduced a node field or a list filter; fields not named here always existed.
FIELD_SINCE = {
    "name": 5, "resource_class": 21, "deploy_interface": 31, "traits": 37, "fault": 42, "conductor_group": 46,
    "automated_clean": 47, "protected": 48, "conductor": 49, "owner": 50, "description": 51,
    "allocation_uuid": 52, "retired": 61, "lessee": 65, "shard": 82, "parent_node": 83, "instance_name": 104,
}  # fmt: skip
FILTER_SINCE = {
    "provision_state": 9, "driver": 16, "resource_class": 21, "fault": 42, "conductor_group": 46,
    "conductor": 49, "owner": 50, "project": 50, "retired": 61, "lessee": 65, "shard": 82, "sharded": 82,
    "include_children": 83, "parent_node": 83,
}  # fmt: skip

_OVERLOADED = (429, 502, 503, 504)

Json = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")


class IronicUnavailable(Unavailable):
    """Error: Ironic or its Keystone is unreachable or overloaded; the caller may retry later."""


class IronicRefused(Exception):
    """Error: Ironic or its Keystone refused an API request; the text gives the reason."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"Ironic refused ({status}): {text}")
        self.status = status
        self.text = text


class IronicApi:
    """A client of Ironic's REST API, to be used with `async with`; reads are retried, writes are not."""

    def __init__(
        self, access: Access, clock: Clock | None = None, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._access = access
        self._auth = access.http_auth()
        self._chance = (clock or Clock()).chance
        self._transport = transport  # given by tests; by default TCP
        self._client: httpx.AsyncClient | None = None
        self._root = ""  # without a trailing slash and without v1
        self._version: tuple[int, int] | None = None
        self._agreeing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def open(self) -> None:
        access = self._access
        self._client = httpx.AsyncClient(
            auth=self._auth,
            verify=False if access.url.startswith("http://") else access.trust(),  # no TLS, nothing to trust
            transport=self._transport,
            timeout=httpx.Timeout(access.timeout, connect=min(5.0, access.timeout)),
            limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
            headers={"Accept": "application/json"},
            trust_env=False,
        )

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def version(self) -> tuple[int, int]:
        """Return the microversion in use: the newest version that the server and this client support."""
        return await self._patiently(self._agreed)

    async def node(self, uuid: str, fields: Sequence[str] | None = None) -> Json | None:
        """Return the node with this uuid or name, with the given fields (default: all); None if not found."""
        try:
            return await self._get(f"/v1/nodes/{quote(uuid, safe='')}", fields)
        except IronicRefused as refused:
            if refused.status == 404:
                return None
            raise

    async def nodes(
        self,
        *,
        fields: Sequence[str] | None = None,
        limit: int = PAGE,
        marker: str = "",
        sort_key: str = "",
        sort_dir: str = "",
        **filters: str | bool | Sequence[str],
    ) -> AsyncIterator[list[Json]]:
        """Yield pages of the nodes that match all filters, with at least the given fields (default: a few).

        `marker`: the listing begins after this node. With `created_at` or `updated_at`, Ironic returns all
        fields, which is slow. A page may have fewer nodes than `limit`. A node whose sort key changes
        meanwhile may be listed twice. Without a `sort_key`, a node that exists during the whole listing is
        always listed.
        """
        minor = (await self.version())[1]
        for name in filters:
            if minor < (since := FILTER_SINCE.get(name, 0)):
                raise IronicRefused(
                    406, f"filtering by {name} takes API 1.{since}; Ironic's newest is 1.{minor}"
                )
        fixed = {"limit": limit, "sort_key": sort_key, "sort_dir": sort_dir, **filters}
        params = {name: _text(value) for name, value in fixed.items() if value != "" or name in filters}
        markers = [marker] if marker else []  # where to continue; the newest entry is tried first
        while True:
            answer = await self._page(fields, params, markers)
            page = answer.get("nodes")
            if not isinstance(page, list):
                raise IronicRefused(200, "the answer has no list of nodes")
            if page:
                yield page
            if not answer.get("next") or not page:
                return
            markers = [*markers[-1:], *(node["uuid"] for node in page[-MARKERS:])]

    async def _page(
        self, fields: Sequence[str] | None, params: Mapping[str, str], markers: list[str]
    ) -> Json:
        """Return the page of nodes after the last of `markers` that Ironic still has, or the first page."""
        path = "/v1/nodes"
        if WITH_ALL.intersection(fields or ()):
            path, fields = "/v1/nodes/detail", None
        while markers:
            try:
                return await self._get(path, fields, {**params, "marker": markers[-1]})
            except IronicRefused as refused:
                if refused.status != 404:
                    raise
                markers.pop()
        return await self._get(path, fields, params)

    async def patch_node(self, uuid: str, operations: Sequence[Json]) -> Json:
        """Apply a JSON patch such as `{"op": "replace", "path": "/name", "value": ...}` to a node."""
        return await self._do("PATCH", f"/v1/nodes/{quote(uuid, safe='')}", list(operations))

    async def set_provision_state(self, uuid: str, target: str, **more: Any) -> None:
        """Start a change of a node's provision state. `target`: a verb such as active; `more`: further fields
        of the request.
        """
        await self._do("PUT", f"/v1/nodes/{quote(uuid, safe='')}/states/provision", {"target": target} | more)

    async def set_maintenance(self, uuid: str, on: bool, reason: str = "") -> None:
        """Set or remove the maintenance flag of a node."""
        path = f"/v1/nodes/{quote(uuid, safe='')}/maintenance"
        await (self._do("PUT", path, {"reason": reason}) if on else self._do("DELETE", path))

    async def _get(
        self, path: str, fields: Sequence[str] | None = None, params: Mapping[str, str] | None = None
    ) -> Json:
        return await self._patiently(self._do, "GET", path, fields=fields, params=params)

    async def _do(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        fields: Sequence[str] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Json:
        version = await self._agreed()
        for _ in range(2):  # a request refused for its version was not executed
            asked = dict(params or {})
            if fields is not None and not WITH_ALL.intersection(fields):
                # A field unknown to the agreed version would be refused.
                asked["fields"] = ",".join(
                    field for field in fields if FIELD_SINCE.get(field, 0) <= version[1]
                )
            response = await self._send(method, path, params=asked, json=body, version=version)
            if response.status_code != 406:
                break
            self._version, refused = None, version
            version = await self._agreed()
            if version == refused:
                break
        return _read(method, response)

    async def _agreed(self) -> tuple[int, int]:
        if self._version is None:
            async with self._agreeing:
                if self._version is None:
                    self._version = await self._agree()
        return self._version

    async def _agree(self) -> tuple[int, int]:
        for path in ("/v1", "/"):
            response = await self._send("GET", path)
            theirs = _version_in(response)
            if theirs is not None:
                break
        else:
            raise IronicRefused(response.status_code, f"{self._root} does not answer as Ironic's API does")
        if theirs < OLDEST:
            raise IronicRefused(406, f"API {OLDEST[0]}.{OLDEST[1]} is our oldest; its newest is {theirs}")
        agreed = min(NEWEST, theirs)
        log.info("speaking API %d.%d with Ironic at %s", *agreed, self._root)
        return agreed

    async def _send(
        self, method: str, path: str, *, version: tuple[int, int] | None = None, **more: Any
    ) -> httpx.Response:
        assert self._client is not None, "open it first"
        headers = {} if version is None else {VERSION: f"{version[0]}.{version[1]}"}
        began, status = monotonic(), "none"
        try:
            root = await self._find_root()
            response = await self._client.request(method, root + path, headers=headers, **more)
            status = str(response.status_code)
        except (httpx.RequestError, OSError) as problem:  # some TLS errors are not wrapped by httpx
            text = str(problem) or type(problem).__name__
            raise IronicUnavailable(f"Ironic at {self._root}: {method} {path}: {text}") from None
        except KeystoneUnavailable as problem:
            raise IronicUnavailable(str(problem)) from None
        except KeystoneRefused as refused:
            raise IronicRefused(refused.status, refused.text) from None
        finally:
            REQUEST_SECONDS.labels(method, status).observe(monotonic() - began)
        if response.status_code in _OVERLOADED or (response.is_server_error and method == "GET"):
            raise IronicUnavailable(f"Ironic at {self._root}: {method} {path}: {_fault(response)}")
        if response.status_code == 404 and version is not None and MAXIMUM not in response.headers:
            # A proxy before Ironic has no route to it; this must not be mistaken for a deleted node.
            raise IronicUnavailable(f"Ironic at {self._root}: {method} {path}: 404, and not from Ironic")
        return response

    async def _find_root(self) -> str:
        if not self._root:
            url = self._access.url
            if not url:
                assert isinstance(self._auth, Keystone)
                url = await self._auth.endpoint("baremetal")
            self._root = url.rstrip("/").removesuffix("/v1")
        return self._root

    async def _patiently(self, read: Callable[P, Awaitable[T]], *args: P.args, **more: P.kwargs) -> T:
        def wait(state: tenacity.RetryCallState) -> float:
            longest = min(LONGEST_WAIT, SHORTEST_WAIT * 4**state.attempt_number)
            return self._chance.uniform(SHORTEST_WAIT, longest)

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(IronicUnavailable),
            stop=tenacity.stop_after_attempt(READ_ATTEMPTS),
            wait=wait,
            reraise=True,
        )
        return await retrying(read, *args, **more)


def _read(method: str, response: httpx.Response) -> Json:
    if not response.is_success:
        raise IronicRefused(response.status_code, _fault(response))
    if not response.content:
        return {}
    try:
        return msgspec.json.decode(response.content, type=Json)
    except NOT_JSON as problem:
        raise IronicRefused(
            response.status_code, f"{method} was not answered with an object: {problem}"
        ) from None


def _version_in(response: httpx.Response) -> tuple[int, int] | None:
    header = response.headers.get(MAXIMUM)
    if header is None and response.is_success:
        with suppress(msgspec.DecodeError, RecursionError, KeyError, TypeError):
            body = msgspec.json.decode(response.content)
            header = (body.get("version") or body["default_version"])["version"]
    try:
        major, minor = (int(part) for part in (header or "").split("."))
    except (ValueError, AttributeError):
        return None
    return major, minor


def _fault(response: httpx.Response) -> str:
    """Return the error text of a response, in any of the formats that Ironic uses."""
    body: Any = response.text
    with suppress(msgspec.DecodeError, RecursionError):
        body = msgspec.json.decode(response.content)
        if isinstance(body, dict):
            body = body.get("error_message") or body.get("error") or body
        if isinstance(body, str):
            body = msgspec.json.decode(body)
    if isinstance(body, dict):
        body = body.get("faultstring") or body.get("description") or body.get("message") or body
    return " ".join(str(body).split())[:500] or response.reason_phrase


def _text(value: str | bool | int | Sequence[str]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int) else ",".join(value)
