"""An agent reports exactly the differences from placement, and notices refused reports."""

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Any

import pytest

from bus.errors import Poison
from bus.messages import InventoryReported
from bus.reports import Inventory
from bus.resources import Edited, FindProviders, ProvidersFound, SetInventory, SetTraits
from compute_sim.agent import SimulatedAgent
from compute_sim.agent_disk import AgentDisk
from compute_sim.core.drivers import NumaDriver
from compute_sim.core.faults import CrashPlan, SimOptions
from compute_sim.machines import Hardware, Machine, SimAgent, SimHost, fleet
from compute_sim.reporting import HOSTS_AT_A_STRETCH, HostReports, HostTrees
from placement_worker import Placement
from tests.support.placement_builders import a_report
from tests.support.placement_calls import edit, find_providers
from tests.support.virtual_time import TurnedClock


def hosts(*drivers: Any, count: int = 2) -> Sequence[SimHost]:
    (agent,) = fleet(("c1",), count, hardware=Hardware(machines=(Machine(drivers),)))
    return agent.hosts


class OneAgent:
    def __init__(self, placement: Placement, turned: TurnedClock, some: Sequence[SimHost]) -> None:
        self.placement, self.turned = placement, turned
        self.hosts = some
        self.disk = AgentDisk()
        self.lost = False
        self.refused: list[str] = []
        who, options = SimAgent("a1", "c1", tuple(some)), SimOptions(crashes=CrashPlan(away=0.01))
        trees = HostTrees(who, self.disk)
        self.does = SimulatedAgent("a1", options, self.disk, trees.use_changed)
        self.does.absent_after = inf
        self.news = HostReports(who, self.does, trees, options, turned.clock, self.ask)

    async def ask(self, question: FindProviders) -> ProvidersFound:
        assert question.cell == "c1"
        return await self.placement.lookups.providers(question)

    async def says(self, after: float = 0.0) -> list[str]:
        """Let `after` seconds pass; return the hosts that the agent then reports."""
        self.turned.now += after
        reply = [one for one in await self.news.announce() if isinstance(one, InventoryReported)]
        if not self.lost:
            outcomes = await self.placement.reports.report_many(reply)
            self.refused += [str(outcome) for outcome in outcomes if isinstance(outcome, Poison)]
        return [report.host for report in reply]


@pytest.fixture
def agent(placement: Placement, turned: TurnedClock) -> OneAgent:
    return OneAgent(placement, turned, hosts())


ONE, TWO = "c1-host00001", "c1-host00002"


async def test_hosts_whose_reported_data_was_changed_are_reported_again(
    placement: Placement, agent: OneAgent
) -> None:
    await agent.says()
    root = agent.hosts[1].root
    await edit(placement, SetInventory(provider=root, resource_class="VCPU", inventory=Inventory(total=1)))
    assert await agent.says(after=20.0) == [TWO]
    assert await agent.says(after=20.0) == []


async def test_traits_that_an_agent_reports_stay_when_an_operator_replaces_them(
    placement: Placement, agent: OneAgent
) -> None:
    await agent.says()
    root = agent.hosts[1].root
    [before] = await find_providers(placement, ids=(root,))
    result = await edit(placement, SetTraits(provider=root, traits=("HW_CPU_X86_VMX",)))
    assert isinstance(result, Edited) and result.provider is not None
    assert {*result.provider.traits} == {"HW_CPU_X86_VMX", *before.traits}
    await edit(placement, SetTraits(provider=root, traits=()))
    [after] = await find_providers(placement, ids=(root,))
    assert before.traits and after.traits == before.traits
    assert await agent.says(after=20.0) == []


async def test_a_lost_report_is_repeated_at_the_next_check(agent: OneAgent) -> None:
    agent.lost = True
    assert await agent.says() == [ONE, TWO]
    assert await agent.says(after=5.0) == []
    agent.lost = False
    assert await agent.says(after=5.0) == [ONE, TWO]
    assert await agent.says(after=20.0) == []


async def test_a_report_that_placement_keeps_refusing_is_logged(
    placement: Placement, agent: OneAgent, caplog: pytest.LogCaptureFixture
) -> None:
    """Another provider has the name of the reported host."""
    assert await placement.reports.report_many([a_report(9, name=ONE)]) == [None]
    for after in (0.0, 10.0, 20.0):
        assert ONE in await agent.says(after)
    assert not caplog.records
    await agent.says(after=40.0)
    assert (
        f"placement has accepted none of the last 3 reports of {ONE}: see `berth system dead list`"
        in caplog.text
    )
    assert TWO not in caplog.text
    assert len(agent.refused) == 4 and all("name" in why for why in agent.refused)


async def test_the_tree_of_another_agent_is_taken_over(
    placement: Placement, turned: TurnedClock, agent: OneAgent
) -> None:
    await agent.says()
    heir = OneAgent(placement, turned, agent.hosts)
    who = SimAgent("a2", "c1", tuple(agent.hosts))
    heir.news = HostReports(who, heir.does, HostTrees(who, heir.disk), SimOptions(), turned.clock, heir.ask)
    turned.now -= 5000.0  # its clock is behind
    assert await heir.says() == [ONE, TWO]
    assert len(await find_providers(placement, agents=("a2",), parts=())) == 2


async def test_a_report_is_not_repeated_while_placement_still_applies_reports(
    agent: OneAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compute_sim.reporting.HOSTS_IN_A_REPORT", 1)
    assert await agent.says() == [ONE]
    agent.lost = True
    assert await agent.says() == [TWO]
    agent.lost = False
    assert await agent.says(after=20.0) == []  # placement has taken the report of the first host
    assert await agent.says(after=20.0) == [TWO]
    assert await agent.says(after=40.0) == []


async def test_more_providers_than_a_page_has_are_all_compared(
    placement: Placement, turned: TurnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compute_sim.reporting.HOSTS_IN_A_REPORT", 4)
    monkeypatch.setattr("compute_sim.reporting.PROVIDERS_A_QUESTION", 4)
    agent = OneAgent(placement, turned, hosts(NumaDriver(), count=5))
    reply = [host for _ in range(3) for host in await agent.says()]
    assert len(set(reply)) == len(reply) == 5
    assert [await agent.says(after=20.0) for _ in range(4)] == [[], [], [], []]
    again = OneAgent(placement, turned, agent.hosts)
    assert await again.says() == []


async def test_a_check_of_many_hosts_does_not_block_builds(
    placement: Placement, turned: TurnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = OneAgent(placement, turned, hosts(count=10 * HOSTS_AT_A_STRETCH))
    turns = 0

    async def builds() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def at_once(question: FindProviders) -> ProvidersFound:
        return ProvidersFound(providers=())

    monkeypatch.setattr(agent.news, "_providers", at_once)
    building = asyncio.create_task(builds())
    assert len(await agent.news.announce()) == 10 * HOSTS_AT_A_STRETCH
    building.cancel()
    assert turns >= 10
