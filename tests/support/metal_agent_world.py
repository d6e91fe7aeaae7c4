"""The bare-metal agent before a simulated Ironic: it can be cut off, killed, and started again."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from bus.clock import Clock
from bus.delivery.runner import Bus, Listener
from bus.local import LocalBroker, LocalTransport
from bus.messages import AgentReported, BuildOrdered, DestroyOrdered, HostReported
from bus.requests import BuildSpec, Flavor
from bus.topics import AGENT_REPORT, HOST_REPORTED
from compute_sim.core.faults import Durations
from compute_sim.ironic import SimNode, SimPlan, Simulation, enrolled
from ironic_sync.agent import metal_agent
from ironic_sync.api import Access, IronicApi
from tests.support.conductor_builders import CELL
from tests.support.ids import uid

AGENT = f"{CELL}-metal"
SPEC = BuildSpec(flavor=Flavor(name="metal", extra_specs={"resources:CUSTOM_BAREMETAL": "1"}))
QUIET = 300.0  # virtual seconds in which whatever would still happen has happened
US, THEM = uid(1, "b"), uid(2, "b")
SLOW = SimPlan(step_time=Durations("constant", (60.0,)))
CALLS_BACK = SimPlan(step_time=Durations("constant", (60.0,)), call_back=True)


class Killed(BaseException):
    pass


class WayToSimulatedIronic(httpx.AsyncBaseTransport):
    def __init__(self, simulation: Simulation) -> None:
        self._asgi = httpx.ASGITransport(simulation.app)
        self.cut = False
        self.refused: dict[str, int] = {}  # method: status
        self.calls: list[str] = []
        self.sent: list[str] = []
        self.slow = 0.0  # seconds until a write arrives
        self.kill_at: int | None = None  # of the moments before and after every call
        self.moments = 0

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
        self.leftover = False  # and of this one
        self.more: dict[str, Any] = {}  # for the agents that are started

    def start(self) -> None:
        """A new agent: it knows nothing of the one before."""
        self._process = self._group.create_task(self._live())

    async def kill(self) -> None:
        assert self._process is not None
        self._process.cancel()
        await asyncio.wait([self._process])

    async def _live(self) -> None:
        api = IronicApi(Access(url="http://ironic"), self.clock, transport=self.line)
        agent = metal_agent(AGENT, CELL, api, clock=self.clock, **self.more)
        try:
            async with Bus(LocalTransport(self.broker)) as bus:
                await bus.serve(agent, asyncio.Event())
        except* Killed:
            self.start()

    def build(self, node: int = 0, attempt: int = 1, build: int = 1) -> BuildOrdered:
        root = self.nodes[node].uuid
        return BuildOrdered(
            build=uid(build, "b"), attempt=attempt, cell=CELL, agent=AGENT, root=root, host=root, spec=SPEC
        )

    def destroy(self, node: int = 0, attempt: int = 1, build: int = 1) -> DestroyOrdered:
        root = self.nodes[node].uuid
        return DestroyOrdered(
            build=uid(build, "b"), attempt=attempt, cell=CELL, agent=AGENT, root=root, host=root
        )

    async def order(self, *orders: BuildOrdered | DestroyOrdered) -> list[tuple[str, str]]:
        said = []
        for one in orders:
            await self.bus.publish(one)
            said.append(await self.next_report())
        return said

    async def next_report(self, seconds: float = QUIET) -> tuple[str, str]:
        async with asyncio.timeout(seconds):
            while (report := await self.reports.get()).outcome == "progress":
                pass
        self.retry, self.leftover = report.retry, report.leftover
        return report.outcome, report.cause

    async def silence(self) -> bool:
        try:
            said = await self.next_report()
        except TimeoutError:
            return True
        raise AssertionError(f"{said} was said")

    async def until(self, true: Callable[[], bool], seconds: float = QUIET) -> None:
        async with asyncio.timeout(seconds):
            while not true():
                await asyncio.sleep(0.01)

    def waiting(self) -> int:
        queues = self.broker.queues
        return sum(len(queues[name].items) for name in queues if name.startswith("agent."))

    def calls(self) -> list[str]:
        return [call for call in self.line.calls if not call.startswith("GET")]

    def state(self, node: int = 0) -> tuple[str, str | None]:
        one = self.nodes[node]
        return one.provision_state, one.instance_uuid


@asynccontextmanager
async def metal_world(plan: SimPlan | None = None, nodes: int = 2, **more: Any) -> AsyncIterator[MetalWorld]:
    made = MetalWorld(plan, nodes)
    made.more = more
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
