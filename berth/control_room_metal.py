"""Bare-metal nodes for the control room: Ironic's state and placement's state."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from berth.operations.host_states import every_provider
from berth.settings import Settings
from bus import topics
from bus.chunks import portions
from bus.delivery.runner import Bus, Listener
from bus.errors import Unavailable
from bus.host_health import marked
from bus.replication import PlacementChanged
from bus.resources import FindAllocations, FindProviders, Provider
from control_room.core.metal import BoardNode, IronicState, MetalNodes, PlacementRecord
from control_room.queries import NO_ANSWER

if TYPE_CHECKING:  # HTTP clients load slowly
    from ironic_sync import IronicApi
    from ironic_sync.core.difference import NodeDifference

SECONDS = 90.0  # reading all of them may take
_A_QUESTION = 200
_PARTS: Final = ("inventories", "traits", "owner")
_ALSO = ("last_error", "maintenance_reason")
Raw = dict[str, Any]


class _Ear:
    """The changed providers of placement since the last call, by root."""

    def __init__(self, listener: Listener[PlacementChanged]) -> None:
        self._listener = listener

    async def get(self) -> Sequence[tuple[str, bool]]:
        return [
            (change.root, change.reshaped or change.gone) for change in (await self._listener.get()).changes
        ]

    async def stop(self) -> None:
        await self._listener.stop()


async def placement_heard(bus: Bus) -> _Ear:
    return _Ear(await bus.listen(topics.PLACEMENT_CHANGED.at()))


class _Remembering:
    """A client of Ironic's API that keeps the last answer for each node."""

    def __init__(self, api: "IronicApi") -> None:
        self._api = api
        self.said: dict[str, Raw] = {}

    async def nodes(self, *, fields: Sequence[str], limit: int, **more: Any) -> AsyncIterator[list[Raw]]:
        async for page in self._api.nodes(fields=(*fields, *_ALSO), limit=limit, **more):
            self.said.update((str(one.get("uuid")), one) for one in page)
            yield page

    async def node(self, uuid: str, fields: Sequence[str] | None = None) -> Raw | None:
        said = await self._api.node(uuid, None if fields is None else (*fields, *_ALSO))
        if said is not None:
            self.said[uuid] = said
        return said


async def metal(settings: Settings, bus: Bus, nodes: Sequence[str] | None = None) -> MetalNodes:
    """Return the states of all bare-metal nodes, or of the named ones. Unreadable sources are named; the rest
    is shown.
    """
    now = bus.clock.now()
    try:
        async with asyncio.timeout(SECONDS):
            if settings.ironic.is_read:
                return await _both_sides(settings, bus, now, nodes)
            return await _placed_alone(settings, bus, now, nodes)
    except TimeoutError:
        problem = f"Reading the nodes took longer than {SECONDS:g} s."
    except NO_ANSWER as trouble:
        problem = f"{trouble}."
    return MetalNodes(at=now, reads_ironic=settings.ironic.is_read, problem=problem)


async def _both_sides(settings: Settings, bus: Bus, now: float, wanted: Sequence[str] | None) -> MetalNodes:
    from berth.ironic import followed
    from ironic_sync.api import IronicRefused
    from ironic_sync.comparison import survey_of

    ironic = followed(settings.having(ironic_amqp_url=""), bus.clock)
    assert ironic.api is not None
    problem, read = "", dict[str, str | None]()
    differs: dict[str, list[str]] = defaultdict(list)

    def differ(found: Iterable["NodeDifference"]) -> None:
        for difference in found:
            differs[difference.node].append(str(difference).partition(": ")[2])

    async with ironic.api as api:
        remembering = _Remembering(api)
        survey = survey_of(ironic, remembering, bus.asker(topics.PROVIDERS), bus.clock)
        placed = await survey.placed() if wanted is None else await survey.placed_of(wanted)
        try:
            if wanted is None:
                async for page in survey.everything(placed, read):
                    for node in page:
                        differ(node.differences)
                found = await survey.each(survey.unread(placed, read), placed)
            else:
                found = await survey.each(wanted, placed)
            for node in found:
                differ(node.differences)
        except (IronicRefused, Unavailable) as trouble:
            problem = f"Ironic does not answer: {trouble}. Its previous answer is shown."
    holders, said = await _holders(bus, placed), remembering.said
    nodes = [
        BoardNode(
            id=uuid,
            name=str((said.get(uuid) or {}).get("name") or ""),
            ironic=_word(said.get(uuid)),
            placement_record=_belief(placed.get(uuid), holders),
            differs=tuple(differs[uuid]),
        )
        for uuid in {**placed, **said}
    ]
    return MetalNodes(at=now, nodes=tuple(nodes), reads_ironic=not problem, problem=problem)


async def _placed_alone(settings: Settings, bus: Bus, now: float, wanted: Sequence[str] | None) -> MetalNodes:
    from berth.worker_roles import metal_agent

    agents = tuple(sorted({metal_agent(settings, cell) for cell in settings.cell_names}))
    if wanted is None:
        query = FindProviders(agents=agents, parts=_PARTS)
        found = [provider async for provider in every_provider(bus, query)]
    else:
        query = FindProviders(ids=tuple(wanted), parts=_PARTS)
        found = [*(await bus.asker(topics.PROVIDERS)(query)).providers] if wanted else []
    placed = {provider.id: provider for provider in found if _is_node(provider) and provider.agent in agents}
    holders = await _holders(bus, placed)
    nodes = [
        BoardNode(
            id=provider.id, name=provider.host or provider.name, placement_record=_belief(provider, holders)
        )
        for provider in placed.values()
    ]
    return MetalNodes(at=now, nodes=tuple(nodes))


def _is_node(provider: Provider) -> bool:
    """Return whether a provider has one unit of one custom resource class, as bare-metal nodes have."""
    has = provider.inventories
    return (
        provider.parent is None
        and len(has) == 1
        and all(name.startswith("CUSTOM_") and stock.total == 1 for name, stock in has.items())
    )


async def _holders(bus: Bus, placed: Mapping[str, Provider]) -> dict[str, str]:
    """Return the consumer that holds each node."""
    used = [uuid for uuid, provider in placed.items() if any(provider.used.values())]
    found: dict[str, str] = {}
    for asked in portions(used, _A_QUESTION):
        consumers = (await bus.asker(topics.ALLOCATIONS)(FindAllocations(providers=asked))).consumers
        found.update((node, consumer.id) for consumer in consumers for node in consumer.allocations)
    return found


def _word(raw: Raw | None) -> IronicState | None:
    if raw is None:
        return None
    said = {name: str(raw.get(name) or "") for name in raw}
    maintenance = bool(raw.get("maintenance"))
    why = said.get("maintenance_reason") or said.get("fault") if maintenance else said.get("last_error")
    return IronicState(
        state=said.get("provision_state") or "available",
        target=said.get("target_provision_state", ""),
        power=said.get("power_state", ""),
        maintenance=maintenance,
        why=(why or "")[:300],
        instance=said.get("instance_uuid", ""),
        resource_class=said.get("resource_class", ""),
    )


def _belief(provider: Provider | None, holders: Mapping[str, str]) -> PlacementRecord | None:
    if provider is None:
        return None
    return PlacementRecord(
        closed=all(stock.reserved >= stock.total for stock in provider.inventories.values()),
        updated=provider.sequence / 1_000_000 if provider.sequence > 0 else 0.0,
        classes=tuple(provider.inventories),
        used=any(provider.used.values()),
        holder=holders.get(provider.id, ""),
        marks=tuple(marked(provider.traits, provider.kept_traits, deleted=provider.gone)),
        cell=provider.cell,
        agent=provider.agent,
    )
