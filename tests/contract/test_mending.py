"""Lost allocations of a build are claimed again by an ordinary claim; a concurrent change wins."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from berth.operations.healing import Mending
from berth.operations.wrong_allocations import Misheld, misheld
from bus.claims import Choice, Claimed
from bus.delivery.runner import Bus
from bus.guests import GuestsAsked, GuestsReported, ReportedGuest
from bus.local import LocalBroker, LocalTransport
from bus.messages import AgentReported, BuildOrdered, BuildPlaced, DestroyOrdered, Selection
from bus.queries import FindBuilds
from bus.requests import BuildSpec, Flavor
from bus.resources import FindAllocations
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.topics import (
    AGENT_ASKED,
    AGENT_BUILD,
    AGENT_DESTROY,
    AGENT_REPORT,
    AGENT_TOLD,
    CELL_CLAIM,
    CELL_RELEASE,
    FIND_BUILDS,
)  # fmt: skip
from bus.worker import Worker, on
from cell_conductor import cell_conductor, places
from placement_worker import Placement, holdings, trees_of_consumers
from tests.support.buses import serving
from tests.support.conductor_builders import an_agent_report
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_release, a_report, an_order, on_hosts
from tests.support.placement_calls import claim, report, silent_placement
from tests.support.waiting import until

WHO = uid(7)
HERE, AGENT = uid(1, "a"), "agent-1"
PLACED = BuildPlaced(
    build=WHO,
    request=uid(1, "d"),
    cell="c1",
    chosen=Selection(root=HERE, host="host-1", agent=AGENT, choice=Choice(on_hosts(1, VCPU=2))),
    generation=1,
    spec=BuildSpec(flavor=Flavor(name="small", vcpus=2), project="p1", user="u1"),
)


@dataclass
class WitnessedCell:
    bus: Bus
    placement: Placement
    database: Database
    guests: list[ReportedGuest]

    async def finds(self) -> list[Misheld]:
        store = self.placement.database
        trees, held = await trees_of_consumers(store), await holdings(store)
        return [*misheld(await places(self.database), trees, held, ())]

    async def heals(self) -> list[str]:
        mending = Mending(self.bus)
        mends = await mending.judged(await self.finds())
        return [mend.why_not or await mending.mend(mend) for mend in mends]

    async def held(self) -> Any:
        found = await self.placement.lookups.allocations(FindAllocations(consumers=(WHO,)))
        return found.consumers[0].allocations if found.consumers else {}

    async def loses(self, generation: int = 1) -> None:
        await self.placement.claims.release_many([a_release(7, generation)])

    async def takes(self, held: Any, generation: int | None) -> None:
        [got] = await claim(self.placement, an_order(a_claim(7, held, generation=generation)))
        assert isinstance(got, Claimed), got


@pytest.fixture
async def cell(url: str, placement: Placement) -> AsyncIterator[WitnessedCell]:
    elsewhere = "sqlite+aiosqlite://" if url.startswith("sqlite") else url
    database = Database(elsewhere, **({"namespace": "cell"} if elsewhere == url else {"inline": True}))
    await migrate(database, "cell_conductor")
    assert await report(placement, a_report(1), a_report(2)) == ["", ""]
    guests = [ReportedGuest(WHO, 1, HERE, "running", on_hosts(1, VCPU=2))]

    async def build(order: BuildOrdered) -> AgentReported:
        return an_agent_report(order, "built")

    async def destroy(order: DestroyOrdered) -> AgentReported:
        return an_agent_report(order, "destroyed")

    async def tell(asked: GuestsAsked) -> GuestsReported:
        there = tuple(guests) if asked.agent == AGENT else ()
        return GuestsReported(
            cell=asked.cell, agent=asked.agent, builds=asked.builds, guests=there, reply_to=asked.reply_to
        )

    agents = [
        Worker(f"agent.c1.{name}", consumes=[
            on(AGENT_BUILD.at(cell="c1", agent=name), build, emits=[AGENT_REPORT]),
            on(AGENT_DESTROY.at(cell="c1", agent=name), destroy, emits=[AGENT_REPORT]),
            on(AGENT_ASKED.at(cell="c1", agent=name), tell, emits=[AGENT_TOLD]),
        ]) for name in (AGENT, "agent-2")
    ]  # fmt: skip

    broker = LocalBroker()
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(Bus(LocalTransport(broker)))
        conductor = cell_conductor(
            "c1", database, bus.asker_of_many(CELL_CLAIM), bus.asker_of_many(CELL_RELEASE)
        )
        await stack.enter_async_context(
            serving(lambda: LocalTransport(broker), silent_placement(placement), conductor, *agents)
        )
        one = WitnessedCell(bus, placement, database, guests)
        await one.takes(on_hosts(1, VCPU=2), None)
        await bus.publish(PLACED)

        async def active() -> bool:
            found = (await bus.asker(FIND_BUILDS)(FindBuilds(cell="c1", builds=(WHO,)))).builds
            return [each.status for each in found] == ["active"]

        await until(active)
        yield one
    await database.close()


async def test_what_is_right_is_left_alone(cell: WitnessedCell) -> None:
    assert await cell.finds() == []


async def test_what_is_lost_is_claimed_back_and_its_cell_knows(cell: WitnessedCell) -> None:
    await cell.loses()
    assert [find.wrong for find in await cell.finds()] == ["missing"]
    assert await cell.heals() == [""]
    assert (await cell.finds(), await cell.held()) == ([], on_hosts(1, VCPU=2))


@pytest.mark.parametrize("held", [on_hosts(2, VCPU=2), on_hosts(1, VCPU=3)])
async def test_what_is_held_otherwise_than_two_witnesses_say_is_claimed_anew(
    cell: WitnessedCell, held: Any
) -> None:
    await cell.takes(held, 1)
    assert await cell.heals() == [""]
    assert (await cell.finds(), await cell.held()) == ([], on_hosts(1, VCPU=2))


async def test_one_witness_is_not_enough(cell: WitnessedCell) -> None:
    await cell.takes(on_hosts(2, VCPU=2), 1)
    cell.guests.clear()
    assert await cell.heals() == ["agent agent-1 has no guest of its attempt 1 on host-1"]
    assert await cell.held() == on_hosts(2, VCPU=2)


async def test_whoever_has_claimed_since_it_was_judged_keeps_it(cell: WitnessedCell) -> None:
    await cell.takes(on_hosts(1, VCPU=3), 1)
    mending = Mending(cell.bus)
    [mend] = await mending.judged(await cell.finds())
    await cell.takes(on_hosts(1, VCPU=4), 2)
    assert await mending.mend(mend) == "somebody else has claimed or given back meanwhile: look again"
    assert await cell.held() == on_hosts(1, VCPU=4)


async def test_one_that_has_ended_meanwhile_is_not_brought_back(cell: WitnessedCell) -> None:
    await cell.loses()
    mending = Mending(cell.bus)
    [mend] = await mending.judged(await cell.finds())
    await cell.placement.claims.release_many([a_release(7, None, "deleted")])
    assert await mending.mend(mend) == "it has ended for placement (deleted)"
    assert await cell.held() == {}


async def test_one_whose_cell_says_otherwise_by_now_is_left_alone(cell: WitnessedCell) -> None:
    await cell.loses()
    [one] = await cell.finds()
    stale = Misheld(one.wrong, replace(one.place, attempt=2), one.generation, one.held, one.sentence)
    [mend] = await Mending(cell.bus).judged([stale])
    assert mend.why_not == "it is being changed just now: look again"
