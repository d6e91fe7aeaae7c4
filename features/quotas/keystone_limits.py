"""Copies Keystone's unified limits to the quotas of projects, and keeps them current."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import httpx
import msgspec
from prometheus_client import Gauge

from bus.clock import Clock
from bus.errors import Unavailable
from features.quotas.counts import ProjectCount
from features.quotas.messages import DEFAULT, INSTANCES
from features.quotas.operations import QuotaOperations
from ironic_sync.extension import Access, KeystoneRefused, KeystoneUnavailable, cloud_access

log = logging.getLogger(__name__)

PATIENCE = 30.0
POLL_SECONDS = 60.0
_SERVERS = "servers"  # Keystone's name of INSTANCES
_OF_CLASS = "class:"

COPIED_AT = Gauge("berth_quotas_copied_timestamp_seconds", "when Keystone's limits were last copied")


class RegisteredLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Keystone's default limit of a resource, for all projects."""

    resource_name: str
    default_limit: int
    region_id: str | None = None


class ProjectLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Keystone's limit of a resource for one project or, without a project, for a domain."""

    resource_name: str
    resource_limit: int
    project_id: str | None = None
    region_id: str | None = None


class _RegisteredLimits(msgspec.Struct, frozen=True):
    registered_limits: tuple[RegisteredLimit, ...]


class _ProjectLimits(msgspec.Struct, frozen=True):
    limits: tuple[ProjectLimit, ...]


def quotas_of(
    registered: Sequence[RegisteredLimit],
    limits: Sequence[ProjectLimit],
    region: str,
    counts: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, dict[str, int]]:
    """Return the limits by project; the default limits have the key "". Limits of another region, of domains,
    and of resources that berth does not count are left out; a limit of this region overrides a limit of all
    regions. `counts`: names of features' counts in Keystone → names in quotas.
    """
    names = {_SERVERS: INSTANCES, **counts}
    found: dict[str, dict[str, int]] = defaultdict(dict)
    listed = [(DEFAULT, limit.resource_name, limit.default_limit, limit.region_id) for limit in registered]
    listed += [
        (limit.project_id, limit.resource_name, limit.resource_limit, limit.region_id)
        for limit in limits
        if limit.project_id
    ]
    for project, name, amount, of_region in sorted(listed, key=lambda row: row[3] is not None):
        if of_region in (None, region) and (resource := _resource(name, names)):
            found[project][resource] = max(amount, -1)
    return dict(found)


def _resource(name: str, names: Mapping[str, str]) -> str:
    return name.removeprefix(_OF_CLASS) if name.startswith(_OF_CLASS) else names.get(name, "")


class KeystoneLimits:
    """Copies unified limits from Keystone to the quotas of projects, once a minute."""

    def __init__(
        self,
        access: Access,
        quotas: QuotaOperations,
        clock: Clock,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._access = access
        self._quotas = quotas
        self._clock = clock
        self._transport = transport  # given by tests

    async def run(self) -> None:
        """Copy the limits periodically; while Keystone or the database does not answer, the last copied
        limits apply.
        """
        async with self._access.keystone_client(timeout=PATIENCE, transport=self._transport) as keystone:
            while True:
                try:
                    await self.copy(keystone)
                except (
                    httpx.HTTPError,
                    KeystoneRefused,
                    KeystoneUnavailable,
                    Unavailable,
                    ValueError,
                ) as away:
                    log.warning("the limits of Keystone are not copied: %s", away or type(away).__name__)
                await asyncio.sleep(POLL_SECONDS)

    async def copy(self, keystone: httpx.AsyncClient) -> bool:
        """Make Keystone's limits the quotas; return whether any was changed."""
        url = self._access.keystone_url
        answers = [await keystone.get(f"{url}/{path}") for path in ("registered_limits", "limits")]
        for answer in answers:
            answer.raise_for_status()
        registered = msgspec.json.decode(answers[0].content, type=_RegisteredLimits).registered_limits
        limits = msgspec.json.decode(answers[1].content, type=_ProjectLimits).limits
        counts = {each.keystone_name: each.resource for each in self._quotas.offers.every(ProjectCount)}
        found = quotas_of(registered, limits, self._access.region, counts)
        changed = await self._quotas.replace_all(found)
        COPIED_AT.set(self._clock.now())
        return changed


def copying_limits(cloud: str, quotas: QuotaOperations) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return a coroutine function that copies Keystone's limits to the quotas until it is cancelled; `cloud`
    is Keystone's entry in clouds.yaml.
    """
    return KeystoneLimits(cloud_access(cloud), quotas, quotas.clock).run
