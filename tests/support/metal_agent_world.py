"""The bare-metal agent before a simulated Ironic, alone or in a cell with every worker, in virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus, Listener
from bus.local import Chaos, LocalBroker, LocalTransport
from bus.messages import (
    AgentReported,
    BuildDeleteRequested,
    BuildEnded,
    BuildOrdered,
    DestroyOrdered,
    HostReported,
)
from bus.requests import BuildSpec, Flavor
from bus.sql.database import Database
from bus.topics import AGENT_REPORT, HOST_REPORTED
from bus.worker import Worker
from compute_sim.core.faults import Durations
from compute_sim.ironic.conductor import SimPlan
from compute_sim.ironic.node import SimNode, enrolled
from compute_sim.ironic.simulation import Simulation
from ironic_sync.agent.right import NodeRight
from ironic_sync.agent.worker import metal_agent
from ironic_sync.api import IronicApi
from ironic_sync.openstack import Access
from tests.support.conductor_builders import CELL
from tests.support.ids import uid
from tests.support.waiting import receive_all

AGENT = f"{CELL}-metal"
SPEC = BuildSpec(flavor=Flavor(name="metal", extra_specs={"resources:CUSTOM_BAREMETAL": "1"}))
QUIET = 300.0  # virtual seconds after which nothing further happens
US, THEM = uid(1, "b"), uid(2, "b")
SLOW = SimPlan(step_time=Durations("constant", (60.0,)))


class Killed(BaseException):
    pass


class WayToSimulatedIronic(httpx.AsyncBaseTransport):
    def __init__(self, simulation: Simulation) -> None:
        self._asgi = httpx.ASGITransport(simulation.app)
        self.cut = False
        self.refused: dict[str, int] = {}  # HTTP method → status of the refusal
        self.calls: list[str] = []
        self.sent: list[str] = []
        self.slow = 0.0  # seconds until a write arrives
        self.kill_at: int | None = None  # moment (before or after a call) at which the agent is killed
        self.moments = 0

    def api(self, clock: Clock) -> IronicApi:
        return IronicApi(Access(url="http://ironic"), clock, transport=self)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._moment()
        if self.cut:
            raise httpx.ConnectError("connection refused")
        self.sent.append(request.method)
        if self.slow and request.method != "GET":
            await asyncio.sleep(self.slow)
        self.calls.append(f"{request.method} {request.url.path}")
        if request.method in self.refused:
            return httpx.Response(self.refused[request.method], json={"error_message": "not here"})
        response = await self._asgi.handle_async_request(request)
        self._moment()
        return response

    def _moment(self) -> None:
        self.moments += 1
        if self.moments == self.kill_at:
            raise Killed


class MetalWorld:
    """A simulated Ironic with nodes, a broker, and an agent that can be killed and started again."""

    def __init__(self, plan: SimPlan | None = None, nodes: int = 2) -> None:
        time = asyncio.get_running_loop().time
        self.ahead = 0.0  # seconds by which the wall clock is wrong
        self.clock = Clock(now=lambda: time() + self.ahead, monotonic=time)
        self.ironic = Simulation(enrolled(nodes, now=0.0), plan=plan, clock=self.clock)
        self.nodes: Sequence[SimNode] = list(self.ironic.conductor.nodes.values())
        self.line = WayToSimulatedIronic(self.ironic)
        self.broker = LocalBroker(clock=self.clock)
        self.bus: Bus
        self.reports: Listener[AgentReported]
        self.beats: Listener[HostReported]
        self._group: asyncio.TaskGroup
        self._process: asyncio.Task[None] | None = None
        self.retry = True
        self.leftover = False
        self.right = NodeRight()
        self.more: dict[str, Any] = {}  # arguments for agents that are started from now on

    def start(self) -> None:
        """Start a new agent process, without the memory of an earlier process."""
        self._process = self._group.create_task(self._live())

    async def kill(self) -> None:
        assert self._process is not None
        self._process.cancel()
        await asyncio.wait([self._process])

    async def _live(self) -> None:
        agent = metal_agent(AGENT, CELL, self.line.api(self.clock), self.right, clock=self.clock, **self.more)
        try:
            async with Bus(LocalTransport(self.broker)) as bus:
                await bus.serve(agent, asyncio.Event())
        except* Killed:
            self.start()

    def build(self, node: int = 0, attempt: int = 1, build: int = 1) -> BuildOrdered:
        return BuildOrdered(**self._address(node), build=uid(build, "b"), attempt=attempt, spec=SPEC)

    def destroy(self, node: int = 0) -> DestroyOrdered:
        return DestroyOrdered(**self._address(node), build=uid(1, "b"), attempt=1)

    def _address(self, node: int) -> dict[str, Any]:
        root = self.nodes[node].uuid
        return {"cell": CELL, "agent": AGENT, "root": root, "host": root}

    async def order(self, *orders: BuildOrdered | DestroyOrdered) -> list[tuple[str, str]]:
        reply = []
        for order in orders:
            await self.bus.publish(order)
            reply.append(await self.next_report())
        return reply

    async def next_report(self, seconds: float = QUIET) -> tuple[str, str]:
        async with asyncio.timeout(seconds):
            while (report := await self.reports.get()).outcome == "progress":
                pass
        self.retry, self.leftover = report.retry, report.leftover
        return report.outcome, report.cause

    async def silence(self) -> bool:
        try:
            reply = await self.next_report()
        except TimeoutError:
            return True
        raise AssertionError(f"{reply} was said")

    async def until(self, true: Callable[[], bool], seconds: float = QUIET) -> None:
        async with asyncio.timeout(seconds):
            while not true():
                await asyncio.sleep(0.01)

    def waiting(self) -> int:
        return sum(len(q.items) for name, q in self.broker.queues.items() if name.startswith("agent."))

    def calls(self) -> list[str]:
        return [call for call in self.line.calls if not call.startswith("GET")]

    def state(self, node: int = 0) -> tuple[str, str | None]:
        one = self.nodes[node]
        return one.provision_state, one.instance_uuid


@asynccontextmanager
async def metal_world(
    plan: SimPlan | None = None, nodes: int = 2, right: NodeRight | None = None, **more: Any
) -> AsyncIterator[MetalWorld]:
    made = MetalWorld(plan, nodes)
    made.right, made.more = right or made.right, more
    async with Bus(LocalTransport(made.broker)) as bus, asyncio.TaskGroup() as group:
        made.bus, made._group = bus, group
        made.reports = await bus.listen(AGENT_REPORT.at(cell=CELL))
        made.beats = await bus.listen(HOST_REPORTED.at())
        ironic = group.create_task(made.ironic.run())
        made.start()
        try:
            async with asyncio.timeout(QUIET):
                await made.beats.get()
            yield made
        finally:
            await made.kill()
            ironic.cancel()


class MetalCell:
    """A cell's broker and database, a simulated Ironic, and processes that are killed by name."""

    def __init__(self, nodes: int, plan: SimPlan, seed: int, chaos: bool = False) -> None:
        self.chance = random.Random(seed)
        loop = asyncio.get_running_loop()
        self.clock = Clock(lambda: 1_700_000_000.0 + loop.time(), random.Random(seed), loop.time)
        misbehaving = Chaos(random.Random(seed), reorder=0.2, duplicate=0.1) if chaos else None
        self.broker = LocalBroker(chaos=misbehaving, clock=self.clock)
        self.cell_db = Database("sqlite+aiosqlite://", inline=True)
        self.enrolled = enrolled(nodes, now=self.clock.now())
        self.ironic = Simulation(self.enrolled, plan=plan, clock=self.clock)
        self.lives: dict[str, asyncio.Task[None]] = {}
        self.ended: dict[str, BuildEnded] = {}
        self.bus: Bus
        self.group: asyncio.TaskGroup

    @property
    def nodes(self) -> dict[str, SimNode]:
        return self.ironic.conductor.nodes

    def serve(self, name: str, worker: Callable[[Bus], Worker]) -> None:
        self.lives[name] = self.group.create_task(self.served(worker))

    async def served(self, worker: Callable[[Bus], Worker]) -> None:
        async with Bus(LocalTransport(self.broker), self.clock) as bus:
            await bus.serve(worker(bus), asyncio.Event())

    async def kill(self, name: str) -> None:
        self.lives[name].cancel()
        await asyncio.wait([self.lives[name]])

    async def delete(self, build: str) -> None:
        await self.bus.publish(BuildDeleteRequested(build=build, cell=CELL))

    async def until(self, true: Callable[[], bool], why: str = "", seconds: float = 600.0) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not true():
            assert loop.time() < began + seconds, why or self.picture()
            await asyncio.sleep(0.05)
        return loop.time() - began

    def picture(self) -> str:
        nodes = self.nodes.values()
        return "\n".join(f"{n.uuid} {n.provision_state} {n.instance_uuid} {n.extra}" for n in nodes)

    def on_end(self, end: BuildEnded) -> None:
        before = self.ended.setdefault(end.build, end)
        assert (before.status, before.root) == (end.status, end.root), "it ended twice"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with Bus(LocalTransport(self.broker), self.clock) as bus, asyncio.TaskGroup() as group:
            self.bus, self.group = bus, group
            ended = await bus.listen(topics.BUILD_ENDED.at())
            self.lives["ends"] = group.create_task(receive_all(ended, self.on_end))
            self.lives["ironic"] = group.create_task(self.ironic.run())
            try:
                yield
            finally:
                for task in self.lives.values():
                    task.cancel()
        await self.cell_db.close()
