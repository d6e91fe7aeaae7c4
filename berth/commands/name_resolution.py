"""Resolves names to uuids in a request: server groups and aggregates."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from berth.commands import aggregates, groups
from berth.settings import BadSetting
from bus.delivery.runner import Bus
from bus.messages import BuildRequested


@dataclass(frozen=True)
class ByName:
    """Names or uuids, as they were given."""

    group: str = ""
    aggregates: tuple[tuple[str, ...], ...] = ()  # one of each
    not_aggregates: tuple[str, ...] = ()


def named(group: str, aggregate: Sequence[str], not_aggregate: Sequence[str]) -> ByName:
    return ByName(
        group,
        tuple(_several("--aggregate", one) for one in aggregate),
        tuple(name for one in not_aggregate for name in _several("--not-aggregate", one)),
    )


async def resolved(bus: Bus, request: BuildRequested, said: ByName) -> BuildRequested:
    """Return the request with uuids; raise CommandRefused for an unknown name."""
    if said.group:
        joined = (await groups.named(bus, said.group, request.project)).id
        request = msgspec.structs.replace(request, hints=msgspec.structs.replace(request.hints, group=joined))
    names = dict.fromkeys((*(name for some in said.aggregates for name in some), *said.not_aggregates))
    ids = {name: await _id(bus, name) for name in names}
    return msgspec.structs.replace(
        request,
        aggregates=tuple(tuple(ids[name] for name in some) for some in said.aggregates),
        not_aggregates=tuple(ids[name] for name in said.not_aggregates),
    )


async def _id(bus: Bus, name: str) -> str:
    """Return the uuid of an aggregate. A uuid is accepted unchanged, also of an aggregate without a name."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return (await aggregates.named(bus, name)).id


def _several(option: str, given: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in given.split(","))
    if not all(names):
        raise BadSetting(f"{option}: {given!r} is not a list of names or uuids of aggregates")
    return names
