"""A cell with an active build, whose allocations and guests tests change to heal them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from berth.features import packages
from berth.operations.allocation_repairs import Mending
from berth.operations.guest_differences import CellRecords, GuestComparison, differences
from berth.operations.guest_repairs import RetiredChoice
from berth.operations.stored_builds import places
from berth.operations.stored_claims import allocations, retired_as, trees_of_consumers
from berth.operations.wrong_allocations import Misheld, misheld
from bus.claims import Choice, Claimed
from bus.delivery.runner import Bus
from bus.guests import GuestsAsked, GuestsReported, ReportedGuest
from bus.local import LocalBroker, LocalTransport
from bus.messages import AgentReported, BuildOrdered, BuildPlaced, DestroyOrdered, Selection
from bus.queries import BuildStands, FindBuilds
from bus.requests import BuildSpec, Flavor
from bus.resources import FindAllocations
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.topics import (
    AGENT_ASKED,
    AGENT_BUILD,
    AGENT_DESTROY,
    AGENT_GUESTS,
    AGENT_REPORT,
    CELL_CLAIM,
    CELL_RELEASE,
    FIND_BUILDS,
)
from bus.worker import Worker, on
from cell_conductor import cell_conductor
from placement_worker import Placement
from tests.support.buses import serving
from tests.support.conductor_builders import an_agent_report
from tests.support.feature_parts import conductor_parts
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_release, a_report, an_order, on_hosts
from tests.support.placement_calls import claim, report, silent_placement
from tests.support.waiting import until

WHO, LOST = uid(7), uid(8)
HERE, AGENT = uid(1, "a"), "agent-1"
CHOSEN = Selection(root=HERE, host="host-1", agent=AGENT, choice=Choice(on_hosts(1, VCPU=2)))
SPEC = BuildSpec(flavor=Flavor(name="small", vcpus=2), project="p1", user="u1")
PLACED = BuildPlaced(build=WHO, request=uid(1, "d"), cell="c1", chosen=CHOSEN, generation=1, spec=SPEC)


@dataclass
class WitnessedCell:
    bus: Bus
    broker: LocalBroker
    placement: Placement
    database: Database
    guests: list[ReportedGuest]
    strays: list[ReportedGuest]  # guests that agent-2 reports

    @property
    def mending(self) -> Mending:
        """The repairs of `berth audit heal`."""
        return Mending(self.bus)

    async def repairs(self, *known: str, retired: RetiredChoice = "") -> list[str]:
        """Compare the agents' guests with these builds, and return the results of the repairs."""
        books = {("c1", AGENT): self.guests, ("c1", "agent-2"): self.strays}
        stood = await places(self.database)
        unknown = {guest.build for some in books.values() for guest in some}.difference(known)
        found = GuestComparison(
            differences(books, CellRecords(known, stood, ())),
            books,
            retired=await retired_as(self.placement.database, unknown),
        )
        mending = self.mending.guests
        judged = await mending.judged(found, retired)
        return [repair.why_not or await mending.mend(repair) for repair in judged]

    async def stands(self, build: str = WHO) -> BuildStands | None:
        found = (await self.bus.asker(FIND_BUILDS)(FindBuilds(cell="c1", builds=(build,)))).builds
        return found[0] if found else None

    async def finds(self) -> list[Misheld]:
        store = self.placement.database
        trees, held = await trees_of_consumers(store), await allocations(store)
        return [*misheld(await places(self.database), trees, held, ())]

    async def heals(self) -> list[str]:
        mending = self.mending
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


@asynccontextmanager
async def witnessed_cell(url: str, placement: Placement) -> AsyncIterator[WitnessedCell]:
    """Run a conductor with an active build on host 1 of agent-1; agent-2 has host 2."""
    elsewhere = "sqlite+aiosqlite://" if url.startswith("sqlite") else url
    database = Database(elsewhere, **({"namespace": "cell"} if elsewhere == url else {"inline": True}))
    await migrate(database, *packages("conductor"))
    assert await report(placement, a_report(1), a_report(2)) == ["", ""]
    guests = [ReportedGuest(WHO, 1, HERE, "running", on_hosts(1, VCPU=2))]
    strays: list[ReportedGuest] = []

    async def build(order: BuildOrdered) -> AgentReported:
        return an_agent_report(order, "built")

    async def tell(asked: GuestsAsked) -> GuestsReported:
        there = tuple(guests) if asked.agent == AGENT else tuple(strays)
        return GuestsReported(
            cell=asked.cell, agent=asked.agent, builds=asked.builds, guests=there, reply_to=asked.reply_to
        )

    async def destroy(order: DestroyOrdered) -> AgentReported:
        listed = guests if order.agent == AGENT else strays
        covered = range(order.above + 1, order.attempt + 1)
        listed[:] = [each for each in listed if each.build != order.build or each.attempt not in covered]
        return an_agent_report(order, "destroyed")

    agents = [
        Worker(f"agent.c1.{name}", consumes=[
            on(AGENT_BUILD.at(cell="c1", agent=name), build, emits=[AGENT_REPORT]),
            on(AGENT_ASKED.at(cell="c1", agent=name), tell, emits=[AGENT_GUESTS]),
            on(AGENT_DESTROY.at(cell="c1", agent=name), destroy, emits=[AGENT_REPORT]),
        ]) for name in (AGENT, "agent-2")
    ]  # fmt: skip

    broker = LocalBroker()
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(Bus(LocalTransport(broker)))
        conductor = cell_conductor(
            "c1",
            database,
            bus.asker_of_many(CELL_CLAIM),
            bus.asker_of_many(CELL_RELEASE),
            parts=conductor_parts("c1"),
        )
        await stack.enter_async_context(
            serving(lambda: LocalTransport(broker), silent_placement(placement), conductor, *agents)
        )
        one = WitnessedCell(bus, broker, placement, database, guests, strays)
        await one.takes(on_hosts(1, VCPU=2), None)
        await bus.publish(PLACED)

        async def active() -> bool:
            found = (await bus.asker(FIND_BUILDS)(FindBuilds(cell="c1", builds=(WHO,)))).builds
            return [each.status for each in found] == ["active"]

        await until(active)
        yield one
    await database.close()


async def retire_lost(cell: WitnessedCell, why: str, *, unplaceable: bool) -> None:
    """Retire the id of a build that no cell has a record of, and add its guest."""
    release = replace(a_release(8, None, why), unplaceable=unplaceable)
    await cell.placement.claims.release_many([release])
    cell.guests.append(ReportedGuest(LOST, 2, HERE, "running", on_hosts(1, VCPU=1)))
