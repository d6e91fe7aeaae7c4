"""Adopts another system's instances as builds of the cells that own their hosts."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from berth.kit import (
    Settings,
    ask_cells,
    cells_text,
    checked,
    every_provider,
    host_named,
    known_cells,
    providers_by_id,
    publish,
)
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.queries import FindBuilds
from bus.resources import Consumer, FindAllocations, FindProviders
from bus.vocabulary import portions
from features.adoption.adoptable import Judged, OldServer, judge
from features.adoption.messages import BUILD_ADOPTED, BuildAdopted, BuildAdoptRequested

PAGE = 500  # providers or consumers in one query
_BUILDS = 100  # builds in one query to a cell
_SECONDS = 30.0  # time limit for an answer to a query


@dataclass(frozen=True)
class AdoptionOutcome:
    """The result of an adoption: adopted, refused and already known instances."""

    adopted: dict[str, BuildAdoptRequested]  # adopted, or would be without --yes
    refused: dict[str, str]  # instance → reason
    known: dict[str, str]  # build → its state


@dataclass(frozen=True)
class Adoptable:
    """Selects the instances to adopt: by id or, if no id is given, all instances on the given hosts."""

    wanted: Sequence[str]
    hosts: Sequence[str]
    servers: Mapping[str, OldServer]  # the old system's records of instances


async def adopt_instances(
    bus: Bus, settings: Settings, selection: Adoptable, timeout: float | None, note: Callable[[str], None]
) -> AdoptionOutcome:
    """Adopt instances as builds of their hosts' cells; if `timeout` is None, only return the instances that
    would be adopted. Call `note` with a text about cells that do not answer.
    """
    wanted, servers = selection.wanted, selection.servers
    found = await (_consumers(bus, wanted) if wanted else _on_hosts(bus, selection.hosts))
    known = await _known(bus, settings, found, note)
    providers = await providers_by_id(bus, (id_ for each in found.values() for id_ in each.allocations))
    foreign = settings.ironic.nodes.agents.values()
    judged = [Judged(id_, why="placement knows no such consumer") for id_ in wanted if id_ not in found]
    judged += [
        judge(consumer, providers, servers.get(id_), named=id_ in wanted, foreign=foreign)
        for id_, consumer in sorted(found.items())
        if id_ not in known
    ]
    requests = [adoption.request for adoption in judged if adoption.request is not None]
    outcomes = await _ask(bus, requests, timeout) if timeout is not None else {}
    refused = {adoption.consumer: adoption.why for adoption in judged if adoption.request is None}
    adopted: dict[str, BuildAdoptRequested] = {}
    for request in requests:
        outcome = outcomes.get(request.build)
        if timeout is not None and outcome is None:
            refused[request.build] = f"cell {request.cell} has not answered yet: repeat the command"
        elif outcome is not None and outcome.outcome == "refused":
            refused[request.build] = outcome.why
        else:
            adopted[request.build] = request
    return AdoptionOutcome(adopted, refused, known)


async def _consumers(bus: Bus, ids: Iterable[str], *, on_providers: bool = False) -> dict[str, Consumer]:
    """Return, by id, the consumers with the given ids or, with `on_providers`, the consumers with allocations
    from the providers with the given ids.
    """
    ask = bus.asker(topics.ALLOCATIONS, timeout=_SECONDS)
    found: dict[str, Consumer] = {}
    for some in portions(ids, PAGE):
        question = FindAllocations(providers=some) if on_providers else FindAllocations(consumers=some)
        found |= {consumer.id: consumer for consumer in (await ask(question)).consumers}
    return found


async def _on_hosts(bus: Bus, hosts: Sequence[str]) -> dict[str, Consumer]:
    """Return, by id, the consumers with allocations on `hosts` (empty: on any host), if their last claim was
    made by a client of the Placement API.
    """
    ids: list[str] = []
    ask = bus.asker(topics.PROVIDERS, timeout=_SECONDS)
    for host in hosts:
        root = await host_named(bus, host)
        ids += [provider.id for provider in (await ask(FindProviders(in_tree=root.id, parts=()))).providers]
    if not hosts:
        ids = [provider.id async for provider in every_provider(bus, FindProviders(parts=()), _SECONDS)]
    consumers = await _consumers(bus, ids, on_providers=True)
    return await _consumers(bus, [id_ for id_, consumer in consumers.items() if consumer.client])


async def _known(
    bus: Bus, settings: Settings, found: Iterable[str], note: Callable[[str], None]
) -> dict[str, str]:
    """Return which of the instances `found` are already builds of a cell, each with a text about the build's
    state. Call `note` with a text about cells that do not answer.
    """
    cells, silent = await known_cells(bus, settings), set[str]()
    find = bus.asker(topics.FIND_BUILDS, timeout=5.0)
    known: dict[str, str] = {}
    for some in portions(sorted(found), _BUILDS):
        answers, deaf = await ask_cells(
            [cell_name for cell_name in cells if cell_name not in silent],
            lambda cell, some=some: find(FindBuilds(cell=cell, builds=some)),  # type: ignore[misc]
        )
        silent |= {*deaf}
        for cell, answer in answers.items():
            for build in answer.builds:
                known[build.build] = f"{build.status} on {build.host} in cell {cell}"
    if silent:
        note(f"did not answer: {cells_text(sorted(silent))}")
    return known


async def _ask(bus: Bus, requests: Sequence[BuildAdoptRequested], timeout: float) -> dict[str, BuildAdopted]:
    """Send adoption requests to cells, and return the replies that arrive in time, by build."""
    outcomes: dict[str, BuildAdopted] = {}
    if not requests:
        return outcomes
    reply_to = f"adopt-{Clock().uuid()[:8]}"
    listener = await bus.listen(BUILD_ADOPTED.at(reply_to=reply_to))
    for some in portions(requests, _BUILDS):
        await publish(bus, *(checked(replace(request, reply_to=reply_to)) for request in some))
    try:
        async with asyncio.timeout(timeout):
            while len(outcomes) < len(requests):
                adopted = await listener.get()
                outcomes[adopted.build] = adopted
    except TimeoutError:
        pass
    return outcomes
