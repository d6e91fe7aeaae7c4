"""Asking a running berth for its aggregates, page by page."""

from typing import Any

from bus import topics
from bus.aggregates import Aggregate, FindAggregates
from bus.delivery.runner import Bus
from bus.requests import ResourceGroup
from bus.resources import FindProviders, Provider

PROVIDERS_A_PAGE = 1000


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
    """The roots that are in it."""
    found: list[Provider] = []
    like = ResourceGroup(member_of=((id_,),))
    while True:
        after = found[-1].id if found else ""
        query = FindProviders(like=like, parts=("aggregates", "owner"), after=after, limit=PROVIDERS_A_PAGE)
        page = (await bus.asker(topics.PROVIDERS)(query)).providers
        found += page
        if len(page) < PROVIDERS_A_PAGE:
            return [provider for provider in found if provider.parent is None]
