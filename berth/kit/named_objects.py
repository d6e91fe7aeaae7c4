"""Replaces the names in build requests by ids: of aggregates, and of the objects of features."""

import uuid
from dataclasses import dataclass
from typing import Protocol

from msgspec import structs

from berth.kit.aggregates import aggregate_named
from berth.kit.hosts import check_host_names
from berth.settings import BadSetting
from bus.delivery.runner import Bus
from bus.messages import BuildRequested


class HostRequestOptions(Protocol):
    """The options that a feature adds to those of build requests."""

    def requested(self, request: BuildRequested) -> BuildRequested:
        """Return the request with what the options say; raise BadSetting if they contradict it."""

    async def resolved(self, bus: Bus, request: BuildRequested) -> BuildRequested:
        """Return the request with the ids of named objects; raise OperationRefused if one is unknown."""


@dataclass(frozen=True)
class ByName:
    """The aggregates of a request, each by name or by uuid, and the options of features."""

    aggregates: tuple[tuple[str, ...], ...] = ()  # the host must be in one aggregate of each tuple
    not_aggregates: tuple[str, ...] = ()
    more: tuple[HostRequestOptions, ...] = ()


async def resolved_request(bus: Bus, request: BuildRequested, by_name: ByName) -> BuildRequested:
    """Return the build request with the uuids of the aggregates and of the objects of features that `by_name`
    names. Raise OperationRefused if several hosts have the name of a host in the request.
    """
    await check_host_names(bus, (request.wanted_host, request.forced_host, *request.ignore_hosts))
    for options in by_name.more:
        request = await options.resolved(bus, request)
    names = dict.fromkeys((*(name for some in by_name.aggregates for name in some), *by_name.not_aggregates))
    ids = {name: await _id(bus, name) for name in names}
    return structs.replace(
        request,
        aggregates=tuple(tuple(ids[name] for name in some) for some in by_name.aggregates),
        not_aggregates=tuple(ids[name] for name in by_name.not_aggregates),
    )


async def _id(bus: Bus, name: str) -> str:
    """Return the uuid of the aggregate with this name; a uuid is returned in lower case with dashes."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return (await aggregate_named(bus, name)).id


def names_listed(option: str, given: str) -> tuple[str, ...]:
    """Return the elements of a comma-separated option; raise BadSetting if one is empty."""
    names = tuple(part.strip() for part in given.split(","))
    if not all(names):
        raise BadSetting(f"{option}: {given!r} is not a list of names or uuids of aggregates")
    return names
