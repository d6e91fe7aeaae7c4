"""Queries of sweeps to placement, on both databases; whole sweeps, and all recorded notifications."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from bus.aggregates import ZONE, AggregateEdited, ChangeAggregate, MakeAggregate
from bus.clock import Clock
from bus.messages import InventoryReported
from bus.reports import Inventory, ProviderReport
from bus.requests import ResourceGroup
from bus.resources import AddInventory, EditRequested, MakeProvider, Provider, SetAggregates, SetTraits
from ironic_sync.comparison import diff
from ironic_sync.core.known_state import KnownStateRules
from ironic_sync.core.node import IronicNode
from ironic_sync.core.selection import NodeSelection
from ironic_sync.following import Following
from ironic_sync.reader import Reader
from ironic_sync.survey import Survey, SurveyedNode
from ironic_sync.sweep import Sweep
from placement_worker import Placement
from tests.support.belief_world import SILENT, Truth, recorded
from tests.support.fake_ironic import node_number
from tests.support.ids import uid
from tests.support.ironic_builders import PLACE
from tests.support.placement_builders import a_claim, a_provider, a_report, an_order, gone, on_hosts
from tests.support.placement_calls import edit_aggregate, find_providers
from tests.support.swept_ironic import SweptIronic
from tests.support.virtual_time import TurnedClock
from tests.support.waiting import until

OWNER: Any = ("owner",)
SELECTION = NodeSelection(
    cell="c1",
    zone="z1",
    aggregates_by=("properties.rack", "conductor_group"),
    labels_by={"rack": "properties.rack"},
)


@pytest.fixture
async def rack(placement: Placement) -> Placement:
    one = replace(a_report(1, a_provider(11, 1), sequence=5), zone="z1")
    two = a_report(2, cell="c2", traits=("CUSTOM_A",))
    for report in (a_report(3), one, two):  # not in the order of their ids
        await placement.reports.report_many([report])
    return placement


async def test_the_owner_of_a_provider_can_be_queried(rack: Placement) -> None:
    (one,) = await find_providers(rack, ids=(uid(1, "a"),), parts=OWNER)
    assert (one.cell, one.agent, one.zone, one.sequence, one.gone) == ("c1", "agent-1", "z1", 5, False)
    (child,) = await find_providers(rack, ids=(uid(11, "a"),), parts=OWNER)
    assert (child.agent, child.sequence, child.host) == ("agent-1", 5, "host-1")
    (silent,) = await find_providers(rack, ids=(uid(1, "a"),), parts=())
    assert (silent.agent, silent.sequence) == ("", -1)


AGENTS = [
    ({"agents": ("agent-1",)}, {1, 11}),
    ({"agents": ("agent-1", "agent-3", "agent-3")}, {1, 11, 3}),
    ({"agents": ("agent-9",)}, set()),
    ({"agents": ("agent-1", "agent-2"), "ids": (uid(2, "a"), uid(3, "a"))}, {2}),
    ({"agents": ("agent-1",), "in_tree": uid(2, "a")}, set()),
    ({"agents": ("agent-2", "agent-3"), "like": ResourceGroup(required=("CUSTOM_A",))}, {2}),
    ({"agents": ("agent-2", "agent-3"), "like": ResourceGroup(forbidden=("CUSTOM_A",)), "limit": 1}, {3}),
]


@pytest.mark.parametrize("query, expected", AGENTS)
async def test_the_providers_of_an_agents_trees(
    rack: Placement, query: dict[str, Any], expected: set[int]
) -> None:
    assert {provider.id for provider in await find_providers(rack, **query)} == {
        uid(number, "a") for number in expected
    }


@pytest.mark.parametrize("which", [{"agents": ("agent-1", "agent-2", "agent-3")}, {}], ids=["agents", "all"])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
async def test_providers_are_found_in_pages(rack: Placement, which: dict[str, Any], limit: int) -> None:
    seen: list[str] = []
    while True:
        page = await find_providers(rack, limit=limit, after=seen[-1] if seen else "", parts=(), **which)
        seen += [provider.id for provider in page]
        if len(page) < limit:
            break
    assert seen == sorted(uid(number, "a") for number in (1, 2, 3, 11))


async def test_a_deleted_provider_in_use_is_marked(rack: Placement) -> None:
    await rack.claims.claim_many([an_order(a_claim(1, on_hosts(3, VCPU=1)))])
    await rack.reports.report_many([gone(3, 9), gone(2, 9, "c2")])
    assert [
        (provider.id, provider.gone) for provider in await find_providers(rack, agents=("agent-2", "agent-3"))
    ] == [(uid(3, "a"), True)]


async def test_a_provider_without_reports_has_no_owner(rack: Placement) -> None:
    await rack.providers.edit_many([EditRequested(edit=MakeProvider(provider=uid(7, "a"), name="by-hand"))])
    (one,) = await find_providers(rack, ids=(uid(7, "a"),), parts=OWNER)
    assert (one.agent, one.cell, one.sequence) == ("", "", -1)


class SweptPlacement(SweptIronic):
    """A sweep between an Ironic and the placement of the test."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(SELECTION, find=placement.lookups.providers)
        self._placement = placement
        self.now = placement.clock.now()

    async def tell(self, seen: Sequence[SurveyedNode]) -> None:
        reports = [reply for node in seen if (reply := node.report(self.rules)) is not None]
        assert await self._placement.reports.report_many(reports) == [None] * len(reports)


async def test_a_sweep_repairs_all_differences(placement: Placement) -> None:
    async with SweptPlacement(placement) as sweeping:
        ironic = sweeping.ironic
        for number in range(1, 600):
            ironic.have(number, traits=["CUSTOM_A"], properties={"rack": f"r{number % 7}"})
        await sweeping.sweep.everything()
        compared = await diff(sweeping.survey)
        assert (compared.nodes, compared.placed, compared.differences) == (599, 599, ())
        ironic.change(5, maintenance=True, traits=["CUSTOM_B"])
        del ironic.nodes[node_number(6)]
        ironic.have(700)
        assert await sweeping.differences() == ["gone", "missing", "reserved", "traits"]
        await sweeping.sweep.everything()
        assert await sweeping.differences() == []


async def test_a_changed_field_of_a_node_is_another_label(placement: Placement) -> None:
    async with SweptPlacement(placement) as sweeping:
        node = sweeping.ironic.have(1, properties={"rack": "r1"})
        await sweeping.sweep.everything()
        assert placement.memory.index.rows[node].domains["rack"] == "r1"
        sweeping.ironic.change(1, properties={"rack": "r2"})
        assert await sweeping.differences() == ["aggregates", "labels"]
        await sweeping.sweep.everything()
        assert placement.memory.index.rows[node].domains["rack"] == "r2"


async def test_an_operators_traits_on_a_node_are_not_a_difference(placement: Placement) -> None:
    async with SweptPlacement(placement) as sweeping:
        ironic = sweeping.ironic
        node = ironic.have(1, traits=["CUSTOM_A"], properties={"rack": "r1"})
        await sweeping.sweep.everything()
        await placement.book.traits.ensure(placement.database, ["CUSTOM_GOLD"], 0.0)
        [before] = await find_providers(placement, ids=(node,))
        rack = uid(9, "e")
        for edit in (
            SetTraits(provider=node, traits=("CUSTOM_A", "CUSTOM_GOLD")),
            SetAggregates(provider=node, aggregates=(*before.aggregates, rack)),
            AddInventory(provider=node, resource_class="DISK_GB", inventory=Inventory(total=5)),
        ):
            await placement.providers.edit_many([EditRequested(edit=edit)])
        [after] = await find_providers(
            placement, ids=(node,), parts=("inventories", "traits", "aggregates", "owner")
        )
        kept = (after.kept_classes, after.kept_traits, after.kept_aggregates)
        assert kept == (("DISK_GB",), ("CUSTOM_GOLD",), (rack,))
        assert await sweeping.differences() == []
        ironic.change(1, traits=["CUSTOM_B"])
        assert await sweeping.differences() == ["traits"]
        await sweeping.sweep.everything()
        assert await sweeping.differences() == []
        [after] = await find_providers(placement, ids=(node,))
        assert set(after.traits) == {"CUSTOM_B", "CUSTOM_GOLD"}


async def test_a_node_keeps_the_aggregates_of_an_operator(placement: Placement) -> None:
    async with SweptPlacement(placement) as sweeping:
        ironic = sweeping.ironic
        node = ironic.have(1, name="node-1", properties={"rack": "r1"})
        await sweeping.sweep.everything()
        [one] = await find_providers(placement, ids=(node,), parts=("aggregates", "owner"))
        [rack] = one.aggregates
        east = MakeAggregate(aggregate=uid(1, "c"), name="east", metadata={ZONE: "z1"}, hosts=(one.host,))
        for edit in (east, ChangeAggregate(aggregate=rack, name="rack-1", add=(node,))):
            assert isinstance(await edit_aggregate(placement, edit), AggregateEdited)
        assert await sweeping.differences() == []
        ironic.change(1, properties={"rack": "r2"}, maintenance=True)
        await sweeping.sweep.everything()
        assert await sweeping.differences() == []
        [after] = await find_providers(placement, ids=(node,), parts=("aggregates", "owner"))
        assert {uid(1, "c"), rack} < set(after.aggregates) and len(after.aggregates) == 3
        assert set(after.kept_aggregates) == {uid(1, "c"), rack}


class RecordedIronic:
    def __init__(self) -> None:
        self.truth = Truth()
        self.now = 0.0

    async def node(self, uuid: str, fields: Sequence[str] | None = None) -> dict[str, Any] | None:
        return _raw(self.truth.at(uuid, self.now))

    async def nodes(self, **asked: Any) -> AsyncIterator[list[dict[str, Any]]]:
        yield [raw for _, node in self.truth.nodes(self.now) if (raw := _raw(node))]


def _raw(node: IronicNode | None) -> dict[str, Any] | None:
    return None if node is None else msgspec.to_builtins(node)


def _facts(provider: Provider | ProviderReport) -> tuple[Any, ...]:
    return provider.id, provider.name, provider.inventories, set(provider.traits), set(provider.aggregates)


async def test_recorded_notifications_lead_to_the_documented_placement_state(
    placement: Placement, turned: TurnedClock
) -> None:
    ironic, turned.now = RecordedIronic(), recorded()[-1].ended
    clock = Clock(lambda: ironic.now, monotonic=lambda: ironic.now)
    rules = KnownStateRules(place=lambda node: PLACE, can_read=True)
    reader = Reader(ironic, clock)

    async def publish(*reports: InventoryReported) -> None:
        await placement.reports.report_many(reports)

    following = Following(rules, publish, clock, reader.request)
    selection = NodeSelection(cell=PLACE.cell)
    survey = Survey(ironic, placement.lookups.providers, selection, rules, following.moment)
    sweep = Sweep(survey, following.repair, clock, pages_per_second=1e9)

    async def as_it_should_be(uuid: str) -> bool:
        node = ironic.truth.at(uuid, ironic.now)
        sent = None if node is None else rules.report(node, PLACE)
        has = [provider for provider in await find_providers(placement, ids=(uuid,)) if not provider.gone]
        if sent is None:
            return not has or node is not None  # a node without a resource class keeps its provider
        return [_facts(provider) for provider in has] == [_facts(sent.providers[0])]

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(reader.run(following.moment, following.found))
        for step in recorded():
            for message in step.messages:
                ironic.now = max(ironic.now, message.arrival)
                await following.handle([message.body.encode()])
            ironic.now = max(ironic.now, step.ended)
            if step.step in SILENT:
                await sweep.everything()
            for uuid in step.nodes:
                await until(partial(as_it_should_be, uuid), f"{uuid} after {step.step}")
        assert not (await diff(survey)).differences
        reading.cancel()
