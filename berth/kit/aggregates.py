"""Finds host aggregates by name or id, and the hosts in them."""

import uuid
from difflib import get_close_matches
from typing import Any

from berth.kit.hosts import every_provider
from bus import topics
from bus.aggregates import Aggregate, FindAggregates, every_aggregate
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.requests import ResourceGroup
from bus.resources import FindProviders, Provider


async def find_aggregates(bus: Bus, **query: Any) -> list[tuple[Aggregate, int]]:
    """Return the aggregates that match `query` (fields of FindAggregates), each with its number of hosts."""
    return [
        (aggregate, page.hosts.get(aggregate.id, 0))
        async for page in every_aggregate(bus.asker(topics.AGGREGATES), FindAggregates(**query))
        for aggregate in page.aggregates
    ]


async def hosts_inside(bus: Bus, id_: str) -> list[Provider]:
    """Return the root providers of the hosts in an aggregate."""
    query = FindProviders(like=ResourceGroup(member_of=((id_,),)), parts=("aggregates", "owner"))
    return [provider async for provider in every_provider(bus, query) if provider.parent is None]


async def aggregate_named(bus: Bus, name: str) -> Aggregate:
    """Return the aggregate with this name or uuid, or raise OperationRefused."""
    try:
        found = await find_aggregates(bus, ids=(str(uuid.UUID(name)),))
    except ValueError:
        found = await find_aggregates(bus, name=name)
    if found:
        return found[0][0]
    names = [aggregate.name for aggregate, _ in await find_aggregates(bus) if aggregate.name]
    nearest = get_close_matches(name, names, 1)
    hint = f"; the nearest is {nearest[0]!r}" if nearest else "; `berth resource aggregate list` lists them"
    raise OperationRefused(f"there is no aggregate {name!r}{hint}")
