"""Leases, owners and orders of bare-metal nodes in a real database, with two conductors."""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from berth.kit.testing import packages
from bus.claims import Choice
from bus.messages import (
    AgentReported,
    BuildDeleted,
    BuildEnded,
    BuildOrdered,
    BuildPlaced,
    DestroyOrdered,
    Selection,
)
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from bus.worker import Outcome
from cell_conductor.extension import AttemptLimits
from cell_conductor.testing import Builds
from features.shared_nodes.messages import (
    FindAgents,
    LeaseAnswered,
    LeaseAsked,
    NodesReported,
    SharingEditRequested,
)
from features.shared_nodes.ring import Ring
from tests.support.conductor_builders import CELL, FEATURES, Books, a_delete, a_placed, an_agent_report
from tests.support.ids import uid
from tests.support.virtual_time import TurnedClock

POOL = "metal"
NODES = tuple(uid(number, "c") for number in range(100, 160))


class AskingAgent:
    def __init__(self, name: str, conductors: list[Ring], time: TurnedClock, run: str = "1") -> None:
        self.name, self.conductors, self.time, self.run = name, conductors, time, run
        self.until = 0.0
        self.epoch = self.version = 0
        self.nodes: dict[str, int] = {}
        self.refused = ""
        self.asked = 0

    async def ask(self, *, leaves: bool = False) -> LeaseAnswered:
        self.asked += 1
        answer = await self.conductors[self.asked % len(self.conductors)].lend(
            LeaseAsked(
                cell=CELL, agent=self.name, pool=POOL, run=self.run, epoch=self.epoch, seen=self.version,
                leaves=leaves,
            )
        )  # fmt: skip
        self.refused = answer.refused
        if not answer.refused:
            self.until = self.time.now + answer.seconds
            if answer.epoch != self.epoch:
                self.nodes = {}
            self.epoch, self.version = answer.epoch, answer.version
            for lent in answer.nodes:
                self.nodes.pop(lent.root, None)
                if lent.epoch:
                    self.nodes[lent.root] = lent.epoch
        return answer


def ring_of(builds: Builds) -> Ring:
    assert isinstance(builds.sharing, Ring)
    return builds.sharing


class RingWorld:
    def __init__(self, database: Database) -> None:
        self.time = TurnedClock()
        self.books = books = Books()
        limits = AttemptLimits(max_attempts=3, build_timeout=100.0, delete_timeout=50.0)
        asks = books.claim_many, books.release_many
        self.builds = [
            Builds(database, *asks, clock=self.time.clock, limits=limits, **FEATURES) for _ in range(2)
        ]
        self.rings = [ring_of(builds) for builds in self.builds]
        self.agents: dict[str, AskingAgent] = {}
        self.reply: list[Message] = []

    def agent(self, name: str, run: str = "1") -> AskingAgent:
        self.agents[name] = AskingAgent(name, self.rings, self.time, run)
        return self.agents[name]

    async def pass_(self, seconds: float, *silent: str) -> None:
        for _ in range(int(seconds * 2)):
            self.time.now += 0.5
            asking = [agent.ask() for name, agent in self.agents.items() if name not in silent]
            await asyncio.gather(*asking)
            await asyncio.gather(*(ring.check_leases() for ring in self.rings))
            for ring in self.rings:
                self.reply += await ring.remind()

    def placed(self, build: int, *roots: str) -> BuildPlaced:
        hosts = [
            Selection(
                root=root, host=f"node-{root[-2:]}", agent=POOL,
                choice=Choice(allocations={root: {"CUSTOM_METAL": 1}}, shapes={root: 1}),
            )
            for root in roots
        ]  # fmt: skip
        placed = replace(a_placed(build), chosen=hosts[0], alternates=tuple(hosts[1:]))
        self.books.hold(placed)
        return placed

    def owner(self, root: str) -> str:
        there = [
            name for name, agent in self.agents.items() if root in agent.nodes and self.time.now < agent.until
        ]
        (name,) = there
        return name


@pytest.fixture
async def world(database: Database) -> RingWorld:
    await migrate(database, *packages("conductor"))
    return RingWorld(database)


async def all_dealt(world: RingWorld, *names: str) -> None:
    for name in names:
        await world.agent(name).ask()
    await world.rings[0].report_nodes(NodesReported(cell=CELL, agent=names[0], pool=POOL, nodes=NODES))
    await world.pass_(2.0)


async def test_two_agents_of_one_name_never_have_a_lease_together(world: RingWorld) -> None:
    await all_dealt(world, "a", "b")
    first = world.agents["a"]
    second = AskingAgent("a", world.rings, world.time, run="2")
    await second.ask()
    assert "another process of this name" in second.refused
    world.agents["second"] = second
    await world.pass_(10.0)
    assert (first.refused, bool(second.refused)) == ("", True)
    await world.pass_(2.0, "a")
    assert second.refused
    await world.pass_(1.0, "a")
    assert (second.refused, set(second.nodes)) == ("", set(first.nodes))
    await first.ask()
    assert "another process of this name" in first.refused


async def test_leases_are_kept_while_all_agents_are_silent(world: RingWorld) -> None:
    """Silence of all agents means that the broker was unreachable: each agent keeps its nodes."""
    await all_dealt(world, "a", "b", "c")
    before = {name: dict(agent.nodes) for name, agent in world.agents.items()}
    await world.pass_(60.0, "a", "b", "c")
    await world.agents["a"].ask()
    await world.pass_(3.0)
    assert {name: agent.nodes for name, agent in world.agents.items()} == before


Said = TypeVar("Said", bound=Message)


def the_one(outcomes: Sequence[Outcome], kind: type[Said]) -> Said:
    (outcome,) = outcomes
    assert isinstance(outcome, Sequence)
    (reply,) = outcome
    assert isinstance(reply, kind)
    return reply


async def test_an_order_for_an_unknown_node_registers_it(world: RingWorld) -> None:
    await all_dealt(world, "a", "b")
    new = uid(777, "c")
    ordered = the_one(await world.builds[0].start_many([world.placed(1, new)]), BuildOrdered)
    await world.pass_(1.0)
    assert (ordered.agent, ordered.epoch) == (world.owner(new), 1)


async def built(world: RingWorld, build: int, root: str, *more: str) -> BuildOrdered:
    order = the_one(await world.builds[0].start_many([world.placed(build, root, *more)]), BuildOrdered)
    report = an_agent_report(order, "built")
    await world.builds[1].report_many([stamped(report, order.epoch)])
    return order


def stamped(report: AgentReported, epoch: int) -> AgentReported:
    return replace(report, epoch=epoch)


async def test_a_node_with_an_instance_stays_with_its_agent_until_it_is_deleted(world: RingWorld) -> None:
    await all_dealt(world, "a", "b", "c")
    root = next(iter(world.agents["a"].nodes))
    order = await built(world, 1, root)
    await world.pass_(30.0, "a")
    there = {agent.agent: agent for agent in (await world.rings[0].find(FindAgents(cell=CELL))).agents}
    assert (there["a"].alive, there["a"].free, there["a"].occupied) == (False, 0, 1)
    late = the_one(await world.builds[0].receive_many([a_delete(world.placed(1, root))]), DestroyOrdered)
    assert (late.agent, late.epoch) == ("a", 1)
    await world.pass_(7.0, "a")
    (destroy,) = [message for message in world.reply if isinstance(message, DestroyOrdered)]
    assert (destroy.agent, destroy.epoch, destroy.attempt) == (world.owner(root), 2, order.attempt)
    deleted = the_one(
        await world.builds[1].report_many([stamped(an_agent_report(destroy, "destroyed"), 2)]), BuildDeleted
    )
    assert deleted.build == order.build
    assert world.books.held == {}


async def test_leftovers_of_a_dead_agent_are_destroyed_by_another_agent(world: RingWorld) -> None:
    await all_dealt(world, "a", "b", "c")
    first = next(iter(world.agents["a"].nodes))
    second = next(iter(world.agents["b"].nodes))
    await world.builds[0].start_many([world.placed(1, first, second)])
    await world.pass_(100.5, "a")
    overdue: Any = await world.builds[0].time_out()
    (reply,) = await world.builds[0].report_many(overdue)
    assert isinstance(reply, Sequence)
    again = reply[-1]
    assert isinstance(again, BuildOrdered)
    assert (again.agent, again.attempt) == ("b", 2)
    assert len(world.books.held) == 2  # the build, and the holder consumer on the first node
    world.reply.clear()
    await world.pass_(7.0, "a")
    (destroy,) = [message for message in world.reply if isinstance(message, DestroyOrdered)]
    assert (destroy.root, destroy.attempt, destroy.agent) == (first, 1, world.owner(first))
    assert destroy.agent != "a"
    await world.builds[0].report_many([stamped(an_agent_report(destroy, "destroyed"), destroy.epoch)])
    assert len(world.books.held) == 1


async def test_reports_of_an_earlier_epoch_are_ignored(world: RingWorld) -> None:
    await all_dealt(world, "a", "b")
    root = next(iter(world.agents["a"].nodes))
    order = the_one(await world.builds[0].start_many([world.placed(1, root)]), BuildOrdered)
    await world.pass_(4.0, "a")
    rehome = SharingEditRequested(cell=CELL, agent="a", edit="rehome")
    assert (await world.rings[1].edit(rehome)).moved == 1
    await world.pass_(0.5, "a")
    (moved,) = [message for message in world.reply if isinstance(message, BuildOrdered)]
    assert (moved.agent, moved.epoch, moved.attempt) == ("b", 2, 1)
    again = the_one(
        await world.builds[0].report_many([stamped(an_agent_report(order, "failed"), 1)]), BuildOrdered
    )
    assert again == moved
    ended = the_one(
        await world.builds[0].report_many([stamped(an_agent_report(moved, "built"), 2)]), BuildEnded
    )
    assert ended.status == "active"


async def test_rehome_moves_nodes_after_their_live_agent_has_stopped(world: RingWorld) -> None:
    await all_dealt(world, "a", "b", "c")
    root = next(iter(world.agents["a"].nodes))
    await built(world, 1, root)
    rehome = SharingEditRequested(cell=CELL, agent="a", edit="rehome", to="c", nodes=(root,))
    answer = await world.rings[0].edit(rehome)
    assert (answer.moved, answer.waiting) == (0, 1)
    assert world.owner(root) == "a"
    await world.pass_(1.5)
    assert world.owner(root) == "c"
    await world.pass_(10.0)
    assert world.owner(root) == "c"


async def test_deleted_nodes_are_removed_unless_in_use(world: RingWorld) -> None:
    await all_dealt(world, "a", "b")
    await built(world, 1, NODES[0])
    taken = await world.rings[0].report_nodes(
        NodesReported(cell=CELL, agent="a", pool=POOL, nodes=NODES[10:])
    )
    assert (taken.new, taken.gone) == (0, 9)
    await world.pass_(2.0)
    assert sorted(root for agent in world.agents.values() for root in agent.nodes) == [NODES[0], *NODES[10:]]
    page = NodesReported(cell=CELL, agent="a", pool=POOL, nodes=(), after=NODES[9], upto=NODES[19])
    assert (await world.rings[0].report_nodes(page)).gone == 10
    assert (await world.rings[0].find(FindAgents(cell=CELL))).nodes == 51
