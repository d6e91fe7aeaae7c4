"""Server groups and aggregates by name: resolves names in requests to uuids."""

import uuid
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import msgspec

from berth.operations.host_states import every_provider
from berth.operations.publishing import checked
from berth.settings import BadSetting
from bus import topics
from bus.aggregates import Aggregate, FindAggregates
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.groups import FindGroups, ServerGroup
from bus.messages import BuildRequested
from bus.requests import ResourceGroup
from bus.resources import FindProviders, Provider


async def find_aggregates(bus: Bus, **query: Any) -> list[tuple[Aggregate, int]]:
    """Return the aggregates that match the query, each with its number of hosts."""
    found: list[tuple[Aggregate, int]] = []
    after, more = "", True
    while more:
        page = await bus.asker(topics.AGGREGATES)(FindAggregates(after=after, **query))
        found += [(aggregate, page.hosts.get(aggregate.id, 0)) for aggregate in page.aggregates]
        more = page.more
        after = page.aggregates[-1].id if page.aggregates else after
    return found


async def hosts_inside(bus: Bus, id_: str) -> list[Provider]:
    """Return the root providers in an aggregate."""
    query = FindProviders(like=ResourceGroup(member_of=((id_,),)), parts=("aggregates", "owner"))
    return [provider async for provider in every_provider(bus, query) if provider.parent is None]


async def aggregate_named(bus: Bus, name: str) -> Aggregate:
    """Return the aggregate of a name or uuid, or raise OperationRefused."""
    try:
        found = await find_aggregates(bus, ids=(str(uuid.UUID(name)),))
    except ValueError:
        found = await find_aggregates(bus, name=name)
    if found:
        return found[0][0]
    names = [aggregate.name for aggregate, _ in await find_aggregates(bus) if aggregate.name]
    nearest = get_close_matches(name, names, 1)
    hint = f"; the nearest is {nearest[0]!r}" if nearest else "; `berth aggregate list` lists them"
    raise OperationRefused(f"there is no aggregate {name!r}{hint}")


async def group_named(bus: Bus, which: str, project: str = "") -> ServerGroup:
    """Return the server group of a name or uuid. Raise OperationRefused unless there is exactly one."""
    try:
        question = FindGroups(ids=(str(uuid.UUID(which)),), project=project)
    except ValueError:
        question = checked(FindGroups(name=which, project=project))
    groups = (await bus.asker(topics.GROUPS)(question)).groups
    if not groups:
        where = f" in project {project}" if project else ""
        raise OperationRefused(
            f"there is no server group {which}{where}: `berth group list` tells which there are"
        )
    if len(groups) > 1:
        projects = ", ".join(sorted(group.project for group in groups))
        raise OperationRefused(
            f"{which} is a server group of projects {projects}: say --project, or its uuid"
        )
    return groups[0]


@dataclass(frozen=True)
class ByName:
    """Server groups and aggregates of a request, by names or uuids as they were given."""

    group: str = ""
    aggregates: tuple[tuple[str, ...], ...] = ()  # one of each
    not_aggregates: tuple[str, ...] = ()


async def resolved(bus: Bus, request: BuildRequested, said: ByName) -> BuildRequested:
    """Return a request with uuids in place of names; raise OperationRefused for an unknown name."""
    if said.group:
        joined = (await group_named(bus, said.group, request.project)).id
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
        return (await aggregate_named(bus, name)).id


def names_listed(option: str, given: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in given.split(","))
    if not all(names):
        raise BadSetting(f"{option}: {given!r} is not a list of names or uuids of aggregates")
    return names
