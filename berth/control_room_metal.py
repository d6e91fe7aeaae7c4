"""Reads bare-metal nodes for the control room from Ironic and from placement."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from berth.operations.host_states import every_provider
from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.host_health import marked
from bus.resources import FindAllocations, FindProviders, Provider, is_node
from bus.vocabulary import portions
from control_room.core.metal import BoardNode, IronicState, MetalNodes, PlacementRecord
from control_room.queries import NO_ANSWER

if TYPE_CHECKING:  # HTTP clients load slowly
    from ironic_sync.api import IronicApi
    from ironic_sync.survey import SurveyedNode

SECONDS = 90.0  # limit for reading all nodes
_A_QUESTION = 200
_PARTS: Final = ("inventories", "traits", "owner")
_ALSO = ("last_error", "maintenance_reason")
Raw = dict[str, Any]


class _Remembering:
    """Wraps a client of Ironic's API and stores the last answer about each node."""

    def __init__(self, api: "IronicApi") -> None:
        self._api = api
        self.answers: dict[str, Raw] = {}

    async def nodes(self, *, fields: Sequence[str], limit: int, **more: Any) -> AsyncIterator[list[Raw]]:
        async for page in self._api.nodes(fields=(*fields, *_ALSO), limit=limit, **more):
            self.answers.update((str(node.get("uuid")), node) for node in page)
            yield page

    async def node(self, uuid: str, fields: Sequence[str] | None = None) -> Raw | None:
        node = await self._api.node(uuid, None if fields is None else (*fields, *_ALSO))
        if node is not None:
            self.answers[uuid] = node
        return node


async def metal(settings: Settings, bus: Bus, nodes: Sequence[str] | None = None) -> MetalNodes:
    """Return all bare-metal nodes or the given nodes; a failure of a service is part of the result."""
    now = bus.clock.now()
    read = _both_sides if settings.ironic.is_read else _placed_alone
    try:
        async with asyncio.timeout(SECONDS):
            return await read(settings, bus, now, nodes)
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
    problem, read, found = "", dict[str, str | None](), list["SurveyedNode"]()
    differs: dict[str, list[str]] = defaultdict(list)
    async with ironic.api as api:
        remembering = _Remembering(api)
        survey = survey_of(ironic, remembering, bus.asker(topics.PROVIDERS), bus.clock)
        placed = await survey.placed() if wanted is None else await survey.placed_of(wanted)
        try:
            if wanted is None:
                async for page in survey.everything(placed, read):
                    found += page
            left = survey.unread(placed, read) if wanted is None else wanted
            found += await survey.each(left, placed)
        except (IronicRefused, Unavailable) as trouble:
            problem = f"Ironic does not answer: {trouble}. Its previous answer is shown."
    for surveyed in found:
        for difference in surveyed.differences:
            differs[difference.node].append(str(difference).partition(": ")[2])
    holders, answers = await _holders(bus, placed), remembering.answers
    nodes = [
        BoardNode(
            id=uuid,
            name=str(answers.get(uuid, {}).get("name") or ""),
            ironic=_ironic_state(answers[uuid]) if uuid in answers else None,
            placement_record=_placement_record(placed.get(uuid), holders),
            differs=tuple(differs[uuid]),
        )
        for uuid in {**placed, **answers}
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
    placed = {provider.id: provider for provider in found if is_node(provider) and provider.agent in agents}
    holders = await _holders(bus, placed)
    nodes = [
        BoardNode(
            id=provider.id,
            name=provider.host or provider.name,
            placement_record=_placement_record(provider, holders),
        )
        for provider in placed.values()
    ]
    return MetalNodes(at=now, nodes=tuple(nodes))


async def _holders(bus: Bus, placed: Mapping[str, Provider]) -> dict[str, str]:
    """Return, for each bare-metal node with allocations, the id of the consumer that has them."""
    used = [uuid for uuid, provider in placed.items() if any(provider.used.values())]
    found: dict[str, str] = {}
    for asked in portions(used, _A_QUESTION):
        consumers = (await bus.asker(topics.ALLOCATIONS)(FindAllocations(providers=asked))).consumers
        found.update((node, consumer.id) for consumer in consumers for node in consumer.allocations)
    return found


def _ironic_state(node: Raw) -> IronicState:
    texts = defaultdict(str, {name: str(value or "") for name, value in node.items()})
    maintenance = bool(node.get("maintenance"))
    return IronicState(
        state=texts["provision_state"] or "available",
        target=texts["target_provision_state"],
        power=texts["power_state"],
        maintenance=maintenance,
        why=((texts["maintenance_reason"] or texts["fault"]) if maintenance else texts["last_error"])[:300],
        instance=texts["instance_uuid"],
        resource_class=texts["resource_class"],
    )


def _placement_record(provider: Provider | None, holders: Mapping[str, str]) -> PlacementRecord | None:
    if provider is None:
        return None
    return PlacementRecord(
        closed=all(
            stock.reserved >= stock.total
            for name, stock in provider.inventories.items()
            if name not in provider.kept_classes
        ),
        updated=provider.sequence / 1_000_000 if provider.sequence > 0 else 0.0,
        used=any(provider.used.values()),
        holder=holders.get(provider.id, ""),
        marks=tuple(marked(provider.traits, provider.kept_traits, deleted=provider.gone)),
        cell=provider.cell,
        agent=provider.agent,
    )
