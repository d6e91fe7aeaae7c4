"""Reads bare-metal nodes for the control room from Ironic and from placement."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from berth.kit.hosts import every_provider
from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.host_health import marked
from bus.resources import FindAllocations, FindProviders, Provider, is_node
from bus.stuck_nodes import reported_at
from bus.vocabulary import portions
from control_room.core.metal import BoardNode, IronicState, MetalNodes, PlacementRecord
from control_room.kit.queries import NO_ANSWER

if TYPE_CHECKING:  # HTTP clients load slowly
    from ironic_sync.api import IronicApi
    from ironic_sync.survey import SurveyedNode

SECONDS = 90.0  # limit for reading all nodes
IRONIC_SECONDS = 60.0  # limit for reading all nodes from Ironic
_A_QUESTION = 200
_PARTS: Final = ("inventories", "traits", "owner")
_ALSO = ("last_error", "maintenance_reason", "protected", "retired")
Raw = dict[str, Any]


class _Remembering:
    """Wraps a client of Ironic's API and stores the last answer about each node; None: deleted in Ironic."""

    def __init__(self, api: "IronicApi") -> None:
        self._api = api
        self.answers: dict[str, Raw | None] = {}

    async def nodes(self, *, fields: Sequence[str], limit: int, **more: Any) -> AsyncIterator[list[Raw]]:
        async for page in self._api.nodes(fields=(*fields, *_ALSO), limit=limit, **more):
            self.answers.update((str(node.get("uuid")), node) for node in page)
            yield page

    async def node(self, uuid: str, fields: Sequence[str] | None = None) -> Raw | None:
        node = await self._api.node(uuid, None if fields is None else (*fields, *_ALSO))
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
        problem = f"reading the nodes took longer than {SECONDS:g} s"
    except NO_ANSWER as trouble:
        problem = str(trouble)
    return MetalNodes(at=0.0, reads_ironic=settings.ironic.is_read, placement_problem=problem)


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
            async with asyncio.timeout(IRONIC_SECONDS):
                if wanted is None:
                    async for page in survey.everything(placed, read):
                        found += page
                left = survey.unread(placed, read) if wanted is None else wanted
                found += await survey.each(left, placed)
        except (IronicRefused, Unavailable) as trouble:
            problem = str(trouble)
        except TimeoutError:
            problem = f"not all nodes were read within {IRONIC_SECONDS:g} s"
    for surveyed in found:
        for difference in surveyed.differences:
            differs[difference.node].append(str(difference).partition(": ")[2])
    answers, holders = remembering.answers, await _holders(bus, placed)
    if not problem:  # a node that Ironic did not list, and that placement has as deleted, was not read alone
        answers |= dict.fromkeys(placed.keys() - answers.keys())
    nodes = []
    for uuid in {**placed, **answers}:
        answer, provider = answers.get(uuid), placed.get(uuid)
        record = None if provider is None else _placement_record(provider, holders)
        nodes.append(
            BoardNode(
                id=uuid,
                name=str((answer or {}).get("name") or (_host_of(provider) if provider else "")),
                ironic=None if answer is None else _ironic_state(answer),
                read=now if uuid in answers else 0.0,
                placement_record=record,
                differs=tuple(differs[uuid]),
            )
        )
    return MetalNodes(at=now, nodes=tuple(nodes), reads_ironic=True, ironic_problem=problem)


async def _placed_alone(settings: Settings, bus: Bus, now: float, wanted: Sequence[str] | None) -> MetalNodes:
    from berth.worker_roles import metal_agent

    agents = tuple(sorted({metal_agent(settings, cell) for cell in settings.cell_names}))
    if settings.ironic.is_heard:  # the agents to which the notifications assign nodes
        from berth.ironic import selection

        agents = tuple(sorted({*agents, *selection(settings).all_agents()}))
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
            id=provider.id, name=_host_of(provider), placement_record=_placement_record(provider, holders)
        )
        for provider in placed.values()
    ]
    return MetalNodes(at=now, nodes=tuple(nodes))


def _host_of(provider: Provider) -> str:
    """Return the name of a node's host, which is the node's last known name in Ironic; empty if unnamed."""
    return "" if provider.host == provider.id else provider.host


async def _holders(bus: Bus, placed: Mapping[str, Provider]) -> dict[str, tuple[str, ...]]:
    """Return, for each bare-metal node with allocations, the ids of all consumers that have them, sorted."""
    used = [uuid for uuid, provider in placed.items() if any(provider.used.values())]
    found: dict[str, set[str]] = defaultdict(set)
    for asked in portions(used, _A_QUESTION):
        for consumer in (await bus.asker(topics.ALLOCATIONS)(FindAllocations(providers=asked))).consumers:
            for node in consumer.allocations:
                found[node].add(consumer.id)
    return {node: tuple(sorted(consumers)) for node, consumers in found.items()}


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
        retired=bool(node.get("retired")),
        protected=bool(node.get("protected")),
    )


def _placement_record(provider: Provider, holders: Mapping[str, tuple[str, ...]]) -> PlacementRecord:
    return PlacementRecord(
        inventory=_inventory(provider),
        closed=provider.label_sources.closed,
        resource_class=", ".join(sorted(provider.inventories.keys() - provider.kept_classes)),
        updated=reported_at(provider.sequence),
        used=any(provider.used.values()),
        holders=holders.get(provider.id, ()),
        marks=tuple(marked(provider.traits, provider.kept_traits, deleted=provider.gone)),
        cell=provider.cell,
        agent=provider.agent,
    )


def _inventory(provider: Provider) -> Literal["free", "reserved", "none"]:
    reported = [stock for name, stock in provider.inventories.items() if name not in provider.kept_classes]
    if not reported:
        return "none"
    return "free" if any(stock.reserved < stock.total for stock in reported) else "reserved"
