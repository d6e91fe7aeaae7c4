"""Registers the Placement API in Keystone's catalogue: compares the entries there with the
operator's URLs, and changes differing entries.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import httpx

from bus.errors import OperationRefused
from ironic_sync.extension import Access, KeystoneRefused, KeystoneUnavailable

SERVICE_TYPE = "placement"
TIMEOUT = 30.0


@dataclass(frozen=True)
class CatalogueEntry:
    """The wanted and the present value of a catalogue entry: the service's name, or an endpoint's URL."""

    interface: str  # public, internal or admin; empty: the service itself
    wanted: str  # URL, or name of the service
    found: str | None = None  # the present URL or name; None: there is no such entry
    id: str = ""

    @property
    def differs(self) -> bool:
        """Return whether the catalogue lacks the entry or has another URL."""
        return self.found is None or (bool(self.interface) and self.found != self.wanted)

    @property
    def sentence(self) -> str:
        """Return the difference as a sentence."""
        what = f"{self.interface} endpoint" if self.interface else f"service of type {SERVICE_TYPE}"
        if self.found is None:
            return f"{what}: {self.wanted} (new)"
        return f"{what}: {self.wanted} (was {self.found})" if self.differs else f"{what}: {self.found}"


class Catalogue:
    """A client of Keystone's API that reads and changes the service catalogue as an administrator."""

    def __init__(self, access: Access) -> None:
        self._url = access.keystone_url
        self._client = access.keystone_client(timeout=TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.aclose()

    async def compare(self, name: str, region: str, urls: Mapping[str, str]) -> list[CatalogueEntry]:
        """Return the present and wanted entries of Placement's service (`name`; the first entry) and of its
        endpoints (`urls` by interface) in a Keystone region.
        """
        regions = [each["id"] for each in await self._list("regions")]
        if region not in regions:
            known = ", ".join(sorted(regions)) or "none"
            raise OperationRefused(f"Keystone has no region {region!r}; it has: {known}")
        services = await self._list("services", type=SERVICE_TYPE)
        if len(services) > 1:
            ids = ", ".join(service["id"] for service in services)
            raise OperationRefused(f"Keystone has several services of type {SERVICE_TYPE}: {ids}")
        if not services:
            wanted = (CatalogueEntry(interface, url) for interface, url in urls.items())
            return [CatalogueEntry("", name), *wanted]
        [service] = services
        query = {"service_id": service["id"], "region_id": region}
        known_endpoints = {each["interface"]: each for each in await self._list("endpoints", **query)}
        entries = [CatalogueEntry("", name, str(service.get("name", "")), service["id"])]
        for interface, url in urls.items():
            found = known_endpoints.get(interface, {})
            entries.append(CatalogueEntry(interface, url, found.get("url"), found.get("id", "")))
        return entries

    async def apply(self, entries: list[CatalogueEntry], region: str) -> None:
        """Create or update Placement's service and endpoints in Keystone where they differ from the wanted
        entries. The first of `entries` is the service."""
        service, *endpoints = entries
        id_ = service.id
        if service.differs:
            about = {"type": SERVICE_TYPE, "name": service.wanted, "description": "Placement (berth)"}
            id_ = (await self._ask("POST", "services", {"service": about}))["service"]["id"]
        for entry in filter(lambda entry: entry.differs, endpoints):
            if entry.found is None:
                about = {"service_id": id_, "interface": entry.interface, "region_id": region}
                await self._ask("POST", "endpoints", {"endpoint": about | {"url": entry.wanted}})
            else:
                await self._ask("PATCH", f"endpoints/{entry.id}", {"endpoint": {"url": entry.wanted}})

    async def _list(self, kind: str, **query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._ask("GET", kind, params=query))[kind]
        return found

    async def _ask(
        self, method: str, path: str, body: Any = None, params: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        try:
            response = await self._client.request(method, f"{self._url}/{path}", json=body, params=params)
            if response.is_success:
                answer: dict[str, Any] = response.json()
                return answer
        except (httpx.RequestError, OSError, ValueError) as problem:
            why = str(problem) or type(problem).__name__
            raise KeystoneUnavailable(f"Keystone at {self._url}: {method} {path}: {why}") from None
        except KeystoneRefused as refused:
            raise OperationRefused(str(refused)) from None
        raise OperationRefused(
            f"Keystone refused ({response.status_code}): {method} {path}: {_why(response)}"
        )


def _why(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.reason_phrase
