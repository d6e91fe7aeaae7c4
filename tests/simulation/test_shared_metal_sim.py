"""Bare metal shared by five agents, in virtual time: crashes, stopped processes, never two at one node."""

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from berth.features import packages
from bus.claims import Choice
from bus.delivery.runner import Bus
from bus.local import LocalTransport
from bus.messages import BuildPlaced, Selection
from bus.sql.migrations import migrate
from cell_conductor import AttemptLimits, cell_conductor
from compute_sim.core.faults import Durations
from compute_sim.ironic.conductor import SimPlan
from features.shared_nodes.lease import NodeLease, nodes_of
from features.shared_nodes.messages import (
    EDIT_SHARING,
    LEASE,
    REPORT_NODES,
    SharingEditAnswered,
    SharingEditRequested,
)
from ironic_sync.agent.worker import metal_agent
from ironic_sync.api import IronicApi
from ironic_sync.core.selection import NodeSelection
from ironic_sync.openstack import Access
from tests.support.conductor_builders import CELL, PARTS, Books
from tests.support.databases import inline_connection
from tests.support.metal_agent_world import SPEC, MetalCell
from tests.support.virtual_time import run

_whose: contextvars.ContextVar["StoppableProcess | None"] = contextvars.ContextVar("whose", default=None)


class StoppableProcess:
    def __init__(self) -> None:
        self._going = asyncio.Event()
        self.go_on, self.stop, self.going = self._going.set, self._going.clear, self._going.wait
        self.go_on()

    @property
    def stopped(self) -> bool:
        return not self._going.is_set()

    def start(self, group: asyncio.TaskGroup, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        asyncio.get_running_loop().set_task_factory(_task)
        context = contextvars.copy_context()
        context.run(_whose.set, self)
        return group.create_task(work, context=context)


def outside(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())


def _task(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
    context = more.get("context")
    process = _whose.get() if context is None else context.get(_whose)
    return asyncio.Task(work if process is None else _Steps(process, work), loop=loop, **more)


class _Steps(Coroutine[Any, Any, Any]):
    """One task's steps, each taken when its process is going."""

    def __init__(self, process: StoppableProcess, work: Coroutine[Any, Any, Any]) -> None:
        self._process = process
        self._work = work
        self._taken = self._take()
        self._started = False

    def send(self, value: Any) -> Any:
        self._started = True
        return self._taken.send(value)

    def throw(self, *error: Any) -> Any:
        return self._taken.throw(*error) if self._started else self._work.throw(*error)

    def close(self) -> None:
        self._taken.close()
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._taken

    def _take(self) -> Generator[Any, Any, Any]:
        value, error = None, None
        while True:
            try:
                waits_for = self._work.throw(error) if error is not None else self._work.send(value)
            except StopIteration as end:
                return end.value
            value = error = None
            try:
                value = yield waits_for
            except GeneratorExit:
                self._work.close()
                raise
            except BaseException as thrown:
                error = thrown
            while self._process.stopped:
                try:
                    yield from self._process.going().__await__()
                except asyncio.CancelledError as thrown:  # it finds that out when it goes on
                    error = thrown


POOL = f"{CELL}-metal"
NETWORK = 0.1  # seconds a request may take to arrive


class MetalBooks(Books):
    """A node is one build's at a time."""

    def occupied(self) -> set[str]:
        return {root for _, allocations in self.held.values() for root in allocations}

    def free_at(self, root: str) -> dict[str, int]:
        return {"CUSTOM_BAREMETAL": int(root not in self.occupied())}


class WatchedWay(httpx.AsyncBaseTransport):
    def __init__(self, world: "RingCloud", agent: str, life: int) -> None:
        self._world, self._agent, self._life = world, agent, life
        self._asgi = httpx.ASGITransport(world.ironic.app)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response: httpx.Response = await asyncio.shield(outside(self._arrive(request)))
        return response

    async def _arrive(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(self._world.chance.uniform(0.0, NETWORK))
        if request.method != "GET":
            self._world.saw_write(self._agent, self._life, request.url.path.split("/")[3])
        return await self._asgi.handle_async_request(request)


class RingProcess:
    """One life of one agent."""

    def __init__(self, name: str, lease: NodeLease) -> None:
        self.name, self.lease = name, lease
        self.process = StoppableProcess()

    @property
    def own(self) -> set[str]:
        return set(self.lease._lent._nodes) if self.lease.good() and not self.process.stopped else set()


class RingCloud(MetalCell):
    """Agents, two conductors, a simulated Ironic, and books in placement's stead."""

    def __init__(self, nodes: int, seed: int) -> None:
        super().__init__(nodes, SimPlan(step_time=Durations("constant", (1.0,)), seed=seed), seed)
        self.books = MetalBooks()
        self.agents: dict[str, RingProcess] = {}
        self.started = 0
        self.writes = 0
        self.faults: list[str] = []
        self._wrote: dict[str, tuple[int, str, int]] = {}  # node → epoch, agent, life of the last write there
        self.placed: dict[str, BuildPlaced] = {}

    def start(self, name: str) -> None:
        self.started += 1
        api = IronicApi(
            Access(url="http://ironic"), self.clock, transport=WatchedWay(self, name, self.started)
        )
        bus = Bus(LocalTransport(self.broker), self.clock)
        lease = NodeLease(
            name, POOL, CELL, bus.asker(LEASE, timeout=1.0), self.clock,
            bus.asker(REPORT_NODES), nodes_of(api, NodeSelection(cell=CELL), CELL, POOL),
        )  # fmt: skip
        agent = metal_agent(name, CELL, api, lease, pool=POOL, clock=self.clock)

        async def live() -> None:
            async with bus:
                await bus.serve(agent, asyncio.Event())

        self.agents[name] = one = RingProcess(name, lease)
        self.lives[name] = one.process.start(self.group, live())

    async def kill(self, name: str) -> None:
        if name in self.agents:
            one = self.agents.pop(name)
            one.process.go_on()
            one.lease._lent.until = float("-inf")
        await super().kill(name)

    def conduct(self, name: str) -> None:
        limits = AttemptLimits(build_timeout=40.0, delete_timeout=30.0, cleanup_timeout=200.0)
        claims = self.books.claim_many, self.books.release_many
        more: dict[str, Any] = {"clock": self.clock, "limits": limits, "parts": PARTS}
        self.serve(name, lambda bus: cell_conductor(CELL, self.cell_db, *claims, **more))

    # What is seen

    def saw_write(self, agent: str, life: int, node: str) -> None:
        self.writes += 1
        row = inline_connection(self.cell_db).execute(
            "SELECT owner, epoch FROM ring_nodes WHERE root = ?", [node]
        )
        owner, epoch = row.fetchone() or ("", 0)
        last_epoch, last_agent, last_life = self._wrote.get(node, (0, agent, life))
        at = asyncio.get_running_loop().time()
        if owner != agent:
            self.faults.append(f"{at:.2f}: {agent} wrote to {node}, which is {owner}'s under {epoch}")
        if agent == last_agent and life < last_life:
            self.faults.append(f"{at:.2f}: {agent}'s life {life} wrote to {node} after its life {last_life}")
        if epoch == last_epoch and agent != last_agent:
            self.faults.append(f"{at:.2f}: {agent} and {last_agent} wrote to {node} under {epoch}")
        self._wrote[node] = epoch, agent, life

    def owners(self) -> dict[str, str]:
        rows = inline_connection(self.cell_db).execute("SELECT root, owner FROM ring_nodes")
        return dict(rows.fetchall())

    def known(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, process in self.agents.items():
            for root in process.own:
                if root in found:
                    self.faults.append(f"{root} is {name}'s and {found[root]}'s")
                found[root] = name
        return found

    async def edit(self, **what: Any) -> SharingEditAnswered:
        return await self.bus.asker(EDIT_SHARING)(SharingEditRequested(cell=CELL, **what))

    # What a client does

    async def build(self) -> str | None:
        """On a free node, with two more to fall back on."""
        free = sorted(set(self.nodes) - self.books.occupied())
        if not free:
            return None
        hosts = [
            Selection(
                root=root, host=root, agent=POOL,
                choice=Choice(allocations={root: {"CUSTOM_BAREMETAL": 1}}, shapes={root: 1}),
            )
            for root in self.chance.sample(free, min(3, len(free)))
        ]  # fmt: skip
        build = self.clock.uuid()
        placed = BuildPlaced(
            build=build, request=self.clock.uuid(), cell=CELL, chosen=hosts[0], generation=1,
            alternates=tuple(hosts[1:]), spec=SPEC,
        )  # fmt: skip
        self.books.hold(placed)
        self.placed[build] = placed
        await self.bus.publish(placed)
        return build


@asynccontextmanager
async def ring_cloud(nodes: int = 100, agents: int = 5, seed: int = 0) -> AsyncIterator[RingCloud]:
    made = RingCloud(nodes, seed)
    await migrate(made.cell_db, *packages("conductor"))
    async with made.running():
        for number in range(2):
            made.conduct(f"conductor{number}")
        for number in range(agents):
            made.start(f"metal{number}")
        try:
            await made.until(lambda: set(made.known()) == set(made.nodes))
            yield made
        finally:
            for agent in made.agents.values():
                agent.process.go_on()


FIVE_SECONDS = 5.0
MOST_MOVE = 1 / 5 * 1.1
SEEDS = 40
_ALWAYS = 2
WHAT_HAPPENS = ("build", "delete", "kill", "stop", "conductor", "edit")


@pytest.fixture(autouse=True)
def quietly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


async def killed_and_followed(cloud: RingCloud, name: str) -> float:
    before = cloud.owners()
    free = {root for root, owner in before.items() if owner == name} - cloud.books.occupied()
    await cloud.kill(name)
    took = await cloud.until(lambda: free <= cloud.known().keys())
    await asyncio.sleep(5.0)
    after = cloud.owners()
    moved = {root for root in before if before[root] != after[root]}
    assert moved == free
    assert len(moved) <= MOST_MOVE * len(before)
    return took


async def troubled(nodes: int, seed: int, seconds: float) -> RingCloud:
    """Builds and deletions, while everybody is killed or stopped at any moment; then what is promised."""
    async with ring_cloud(nodes, seed=seed) as cloud:
        loop, chance = asyncio.get_running_loop(), cloud.chance
        end = loop.time() + seconds
        deleted: set[str] = set()
        while loop.time() < end:
            await asyncio.sleep(chance.expovariate(2.0))
            cloud.known()
            active = [build for build, end in cloud.ended.items() if end.status == "active"]
            match chance.choices(WHAT_HAPPENS, (8, 4, 2, 3, 1, 1))[0]:
                case "build":
                    await cloud.build()
                case "delete" if active:
                    build = chance.choice(sorted(active))
                    deleted.add(build)
                    await cloud.delete(build)
                case "kill":
                    name = chance.choice(sorted(cloud.agents))
                    await cloud.kill(name)
                    await asyncio.sleep(chance.choice((0.0, 1.0, 6.0)))
                    cloud.start(name)
                case "stop":
                    one = chance.choice([process for _, process in sorted(cloud.agents.items())])
                    one.process.stop()
                    loop.call_later(chance.choice((0.2, 1.9, 2.4, 3.0, 8.0)), one.process.go_on)
                case "conductor":
                    name = chance.choice(["conductor0", "conductor1"])
                    await cloud.kill(name)
                    await asyncio.sleep(chance.choice((0.0, 1.0)))
                    cloud.conduct(name)
                case "edit":
                    name = chance.choice(sorted(cloud.agents))
                    await cloud.edit(agent=name, edit=chance.choice(("disable", "enable", "rehome")))
        for agent in cloud.agents.values():
            agent.process.go_on()
        for name in cloud.agents:
            await cloud.edit(agent=name, edit="enable")
        await cloud.until(lambda: cloud.ended.keys() == cloud.placed.keys(), why="every build ends")
        for build in deleted:
            await cloud.delete(build)
        running = {build for build, end in cloud.ended.items() if end.status == "active"} - deleted
        await cloud.until(
            lambda: cloud.books.held.keys() == running, why="what is active holds its node, and nothing else"
        )
        await cloud.until(lambda: set(cloud.known()) == set(cloud.owners()), why="every node has an agent")
        assert {cloud.ended[build].root for build in running} == {
            uuid for uuid, node in cloud.nodes.items() if node.instance_uuid
        }
        await asyncio.sleep(20.0)
        assert await killed_and_followed(cloud, "metal3") <= FIVE_SECONDS
        assert cloud.faults == []
        assert cloud.writes > 10
        return cloud


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed < _ALWAYS else pytest.mark.soak) for seed in range(SEEDS)]
)
def test_one_agent_per_node_and_one_end_per_build(seed: int) -> None:
    run(troubled(60, seed, 40.0))
