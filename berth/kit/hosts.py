"""Finds hosts and their providers by name or id."""

import uuid
from collections.abc import AsyncIterator, Collection, Iterable

from msgspec import structs

from bus import topics
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.resources import FindProviders, Provider
from bus.vocabulary import portions

A_PAGE = 500


async def every_provider(bus: Bus, query: FindProviders, timeout: float = 10.0) -> AsyncIterator[Provider]:
    """Yield all providers that match the query, and read them from placement page by page."""
    ask, after, more = bus.asker(topics.PROVIDERS, timeout), "", True
    while more:
        page = (await ask(structs.replace(query, after=after, limit=A_PAGE))).providers
        for provider in page:
            yield provider
        after, more = max((provider.id for provider in page), default=""), len(page) == A_PAGE


async def providers_by_id(bus: Bus, ids: Iterable[str], timeout: float = 30.0) -> dict[str, Provider]:
    """Return the providers with the given ids, by id, with their cells, agents and traits."""
    ask = bus.asker(topics.PROVIDERS, timeout=timeout)
    found: dict[str, Provider] = {}
    for some in portions(sorted({*ids}), A_PAGE):
        answer = await ask(FindProviders(ids=some, parts=("traits", "owner")))
        found |= {provider.id: provider for provider in answer.providers}
    return found


async def reported_hosts(bus: Bus, agent: str = "") -> AsyncIterator[Provider]:
    """Yield the root providers of the hosts that this agent or, without an agent, any agent reports."""
    query = FindProviders(parts=("traits", "owner"), agents=(agent,) if agent else ())
    async for provider in every_provider(bus, query):
        if provider.parent is None and provider.agent:
            yield provider


async def host_named(bus: Bus, name: str) -> Provider:
    """Return the root provider of the host with this name or uuid; a bare-metal node has the name that Ironic
    gives it. Raise OperationRefused if there is no such host, or if several hosts have the name.
    """
    found = await hosts_named(bus, name)
    if not found:
        raise OperationRefused(f"there is no host {name!r}; `berth host list` lists them")
    return found[0]


async def hosts_named(bus: Bus, name: str) -> list[Provider]:
    """Return the root provider of the host with this name or uuid in a list, which is empty if there is no
    such host. Raise OperationRefused if several hosts have the name.
    """
    try:
        query = FindProviders(ids=(str(uuid.UUID(name)),), parts=("traits", "owner"))
    except ValueError:
        query = FindProviders(host=name, parts=("traits", "owner"))
    answer = await bus.asker(topics.PROVIDERS)(query)
    found = [provider for provider in answer.providers if provider.parent is None]
    if len(found) > 1:
        ids = " and ".join(sorted(provider.id for provider in found))
        raise OperationRefused(
            f"several hosts have the name {name!r}: give the uuid of the host, one of {ids}"
        )
    return found


async def host_id(bus: Bus, name: str) -> str:
    """Return the root of the host with this name; a uuid is returned in lower case with dashes, unchecked."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return (await host_named(bus, name)).id


async def check_host_names(bus: Bus, names: Iterable[str]) -> None:
    """Raise OperationRefused if several hosts have one of the names. Unknown names are accepted: the worker
    that receives the request refuses them.
    """
    for name in dict.fromkeys(filter(None, names)):
        await hosts_named(bus, name)


async def host_names(bus: Bus, roots: Collection[str]) -> dict[str, str]:
    """Ask placement for the host names of these root providers. Providers without a host have the provider's
    name.
    """
    if not roots:
        return {}
    found = await bus.asker(topics.PROVIDERS)(FindProviders(ids=tuple(sorted(roots)), parts=("owner",)))
    return {provider.id: provider.host or provider.name for provider in found.providers}
