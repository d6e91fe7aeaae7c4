"""Bare metal that five agents share, each a process, on real services: one is stopped, and comes back."""

import asyncio
import os
import signal
from collections import Counter

import pytest
from rich.console import Console

from berth import composition, worker_roles
from berth.kit import ActCli, Settings
from bus import topics
from bus.clock import Clock, monotonic
from bus.http import listen
from bus.messages import BuildEnded, BuildRequested
from bus.sql.database import Database
from compute_sim.testing import Durations, SimPlan, Simulation, enrolled
from features.shared_nodes import store
from features.shared_nodes.commands import edit
from features.shared_nodes.messages import FIND_AGENTS, AgentsFound, FindAgents, SharingEditRequested
from tests.support.berth_processes import Running, running
from tests.support.ids import uid
from tests.support.scheduler_builders import METAL
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.soak]

NODES, BUILDS = 1000, 40
STOPPED = "c1-metal-3"
SOON = 90.0


class SharedMetalSite:
    def __init__(self, berth: Running, ironic: Simulation, database: Database) -> None:
        self.berth, self.ironic, self.database = berth, ironic, database

    async def agents(self) -> AgentsFound:
        return await self.berth.bus.asker(FIND_AGENTS)(FindAgents(cell="c1"))

    async def owners(self) -> dict[str, str]:
        async with self.database.read() as tx:
            return {node.root: node.owner for node in await store.nodes(tx, "c1-metal")}

    async def owned(self) -> dict[str, str]:
        async with self.database.read() as tx:
            members = {member.agent: member for member in await store.members(tx)}
            nodes = await store.nodes(tx, "c1-metal")
        return {
            node.root: node.owner
            for node in nodes
            if not node.leaving and members[node.owner].alive and members[node.owner].seen >= node.version
        }

    def in_use(self) -> set[str]:
        return {uuid for uuid, node in self.ironic.conductor.nodes.items() if node.instance_uuid}

    def signal(self, agent: str, number: signal.Signals) -> None:
        os.kill(self.berth.supervisor.processes()[f"metal.c1.{agent}"][0], number)

    async def dealt(self) -> bool:
        await asyncio.sleep(0.1)
        found = await self.agents()
        shares = [agent.free + agent.occupied for agent in found.agents if agent.alive]
        return len(shares) == 5 and found.nodes == NODES == sum(shares) and min(shares) >= 0.9 * NODES / 5


async def test_one_of_five_agents_is_stopped_during_builds_and_returns(
    servers: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_settings = worker_roles.roles_of
    further = [worker_roles.Role("metal", "c1", f"c1-metal-{number}") for number in range(2, 6)]
    monkeypatch.setattr(worker_roles, "roles_of", lambda settings: [*of_settings(settings), *further])
    clock, listener, writes = Clock(), listen("127.0.0.1:0"), Counter[str]()
    plan = SimPlan(step_time=Durations("constant", (6.0,)))
    ironic = Simulation(enrolled(NODES, now=clock.now()), plan=plan, clock=clock, listener=listener)
    count_writes(ironic, writes)
    settings = servers.having(simulator={"hosts": 1}, ironic_api=ironic.url, build_timeout=300.0)
    database = composition.database_of(settings, worker_roles.Role("conductor", "c1"))
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(ironic.run())
        async with running(settings) as berth:
            site = SharedMetalSite(berth, ironic, database)
            await until(site.dealt, seconds=SOON, picture=site.agents)
            await stop_and_go_on(site, settings, writes)
        serving.cancel()
    await database.close()


async def stop_and_go_on(site: SharedMetalSite, settings: Settings, writes: Counter[str]) -> None:
    bus = site.berth.bus
    ends = await bus.listen(topics.BUILD_ENDED.at())
    ended: dict[str, BuildEnded] = {}

    async def handle() -> None:
        while True:
            reply = await ends.get()
            assert ended.setdefault(reply.build, reply).status == reply.status

    async with asyncio.TaskGroup() as group:
        listening = group.create_task(handle())
        builds = tuple(uid(number, "b") for number in range(BUILDS))
        await bus.publish(BuildRequested(request=uid(1, "a"), instances=builds, flavor=METAL, alternates=0))
        await until(lambda: len(site.in_use()) == BUILDS, seconds=SOON)

        before, busy = await site.owners(), site.in_use()
        his = {root for root, owner in before.items() if owner == STOPPED}
        assert his & busy
        site.signal(STOPPED, signal.SIGSTOP)
        began = monotonic()
        free = his - busy

        async def followed() -> bool:
            await asyncio.sleep(0.1)
            owned = await site.owned()
            return all(owned.get(root, STOPPED) != STOPPED for root in free)

        await until(followed, seconds=SOON)
        assert monotonic() - began <= 5.0
        after = await site.owners()
        moved = {root for root in before if before[root] != after[root]}
        assert moved == free and len(moved) <= NODES / 5 * 1.1

        others = len(busy - his)
        await until(lambda: len(ended) >= others, seconds=SOON)
        await asyncio.sleep(8.0)
        request = SharingEditRequested(cell="c1", agent=STOPPED, edit="rehome")
        await edit(ActCli(settings, say=Console(quiet=True)), request, "", 30.0)
        await until(lambda: len(ended) == BUILDS, seconds=SOON)
        assert {end.status for end in ended.values()} == {"active"}

        counted = sum(writes.values())
        site.signal(STOPPED, signal.SIGCONT)
        await asyncio.sleep(6.0)
        assert sum(writes.values()) == counted
        await until(site.dealt, seconds=SOON, picture=site.agents)
        listening.cancel()


def count_writes(ironic: Simulation, writes: Counter[str]) -> None:
    app = ironic.app

    async def counting(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        if scope["type"] == "http" and scope["method"] != "GET":
            writes[scope["path"].split("/")[3]] += 1
        await app(scope, receive, send)

    ironic.app = counting  # type: ignore[assignment]
