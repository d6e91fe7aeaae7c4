"""A conductor replaces a failed member of a gang under the topology of the gang, on both databases."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest

from berth.kit.testing import packages
from bus.domains import LabelEditRequested
from bus.messages import BuildEnded, BuildOrdered, BuildPlaced
from bus.reports import Inventory
from bus.resources import FindAllocations
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Id, Message
from cell_conductor.testing import Builds
from features.groups.constraints import DomainConstraints
from features.topology.tests.support.topology_clouds import a_gang
from placement_worker.testing import Placement
from tests.support.conductor_builders import FEATURES, an_agent_report, deliver
from tests.support.ids import uid
from tests.support.placement_builders import a_report
from tests.support.schedulers import messages_of, scheduler_of

RACK = 3  # hosts of a rack
FREE = {"VCPU": Inventory(total=8), "MEMORY_MB": Inventory(total=64), "DISK_GB": Inventory(total=100)}
PACKED = DomainConstraints(pack="rack", spread="host")


@dataclass
class GangAtWork:
    """A gang of two members whose builds have been ordered: two racks of three hosts, all empty."""

    placement: Placement
    builds: Builds
    orders: dict[Id, BuildOrdered]  # the latest of each member

    async def fail(self, *members: Id) -> dict[Id, BuildEnded]:
        """Report that the latest attempts of members failed; return the members that ended."""
        ended: dict[Id, BuildEnded] = {}
        for report in [an_agent_report(self.orders[each], "failed", cause="no disk") for each in members]:
            for message in _messages(await deliver(self.builds, report)):
                if isinstance(message, BuildOrdered):
                    self.orders[message.build] = message
                elif isinstance(message, BuildEnded):
                    ended[message.build] = message
        return ended

    async def held(self) -> dict[Id, str]:
        """Return the host on which each member holds resources."""
        asked = FindAllocations(consumers=tuple(self.orders))
        consumers = (await self.placement.lookups.allocations(asked)).consumers
        return {each.id: root for each in consumers for root in each.allocations}


def _messages(outcome: object) -> Sequence[Message]:
    assert isinstance(outcome, Sequence), outcome
    return outcome


def rack_of(root: str) -> int:
    return (int(root.rsplit("-", 1)[1]) - 1) // RACK


@pytest.fixture
async def gang(placement: Placement) -> AsyncIterator[GangAtWork]:
    numbers = range(1, 2 * RACK + 1)
    await placement.reports.report_many([a_report(number, inventories=FREE) for number in numbers])
    for number in numbers:
        root = uid(number, "a")
        await placement.reports.label(LabelEditRequested(roots=(root,), set={"rack": f"r{rack_of(root)}"}))
    placed = await messages_of(scheduler_of(placement), a_gang(1, PACKED, (1, 4, 8), (1, 2, 4)))
    database = Database("sqlite+aiosqlite://")
    await migrate(database, *packages("conductor"))
    builds = Builds(
        database,
        placement.claims.claim_many,
        placement.claims.release_many,
        clock=placement.clock,
        **FEATURES,
    )
    orders: dict[Id, BuildOrdered] = {}
    for each in placed:
        assert isinstance(each, BuildPlaced)
        [order] = _messages(await deliver(builds, each))
        assert isinstance(order, BuildOrdered)
        orders[each.build] = order
    yield GangAtWork(placement, builds, orders)
    await database.close()


async def test_a_failed_member_is_built_again_in_the_rack_of_the_others(gang: GangAtWork) -> None:
    failed, other = gang.orders
    before = await gang.held()
    assert await gang.fail(failed) == {}
    after = await gang.held()
    assert after == {failed: gang.orders[failed].root, other: before[other]}
    assert after[failed] not in before.values()
    assert rack_of(after[failed]) == rack_of(before[other])
