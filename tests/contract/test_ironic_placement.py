"""Sweeps and all recorded notifications, with a real placement on both databases."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import msgspec

from bus.aggregates import ZONE, AggregateEdited, ChangeAggregate, MakeAggregate
from bus.clock import Clock
from bus.messages import InventoryReported
from bus.reports import ProviderReport
from bus.resources import Provider
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
from tests.support.ids import uid
from tests.support.ironic_builders import PLACE
from tests.support.placement_calls import edit_aggregate, find_providers
from tests.support.swept_ironic import SweptIronic
from tests.support.virtual_time import TurnedClock
from tests.support.waiting import until

SELECTION = NodeSelection(
    cell="c1",
    zone="z1",
    aggregates_by=("properties.rack", "conductor_group"),
    labels_by={"rack": "properties.rack"},
)


class SweptPlacement(SweptIronic):
    """A sweep between an Ironic and the placement of the test."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(SELECTION, find=placement.lookups.providers)
        self._placement = placement
        self.now = placement.clock.now()

    async def tell(self, seen: Sequence[SurveyedNode]) -> None:
        reports = [reply for node in seen if (reply := node.report(self.rules)) is not None]
        assert await self._placement.reports.report_many(reports) == [None] * len(reports)


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
