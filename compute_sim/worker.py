"""A simulated agent: builds what it is ordered to, after a while, as its fault plan says; tells of its hosts.

An order is unsettled for as long as its build runs: when the agent is killed, it comes again.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bus.agent_builds import REMEMBERED, AgentBuilds, Key, report
from bus.clock import Clock
from bus.messages import (
    AgentReported,
    BuildOrdered,
    DestroyOrdered,
    FindProviders,
    HostReported,
    InventoryReported,
    NodeChanged,
    ProvidersFound,
)
from bus.protocol import Ask
from bus.report_sequence import ReportSequence
from bus.topics import (
    AGENT_BUILD,
    AGENT_DESTROY,
    AGENT_REPORT,
    HOST_REPORTED,
    INVENTORY_REPORTED,
    IRONIC_NODE,
    PROVIDERS,
)
from bus.vocabulary import HostState, ProviderReport
from bus.worker import Worker, every, on
from compute_sim.core import CrashPlan, FaultPlan, draw
from compute_sim.fleet import SimHost

HANG_SECONDS = 1500.0  # less than the half hour after which RabbitMQ takes an order back from a silent reader
HOSTS_IN_A_REPORT = 500
FIRST_GAP = 10.0  # between announcements at first, doubled each time: placement may not be there yet

How = Literal["done", "lost", "destroyed", "handed over"]


@dataclass(eq=False, slots=True)
class _Job:
    """A running build. Whoever was handed the order last waits for its end; the others need not."""

    due: float
    lost: bool = False  # the power failed
    waiter: asyncio.Future[How] | None = None

    def tell(self, how: How) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(how)


class _Agent:
    """One agent: any number of hosts, one ledger, one power supply."""

    def __init__(
        self,
        agent: str,
        cell: str,
        hosts: Sequence[SimHost],
        faults: FaultPlan,
        crashes: CrashPlan,
        period: float,
        announce_every: float,
        clock: Clock,
        remembered: int,
        providers: Ask[FindProviders, ProvidersFound] | None,
    ) -> None:
        self.agent = agent
        self.cell = cell
        self.hosts = hosts
        self.faults = faults
        self.crashes = crashes
        self.period = period
        self.announce_every = announce_every
        self.clock = clock
        self.ledger = AgentBuilds(remembered)
        self._jobs: dict[Key, _Job] = {}
        self._building: Counter[str] = Counter()
        self._power = asyncio.Event()
        self._power.set()
        self._crashed = 0
        self._until_crash = crashes.next_after(agent, 0)
        self._to_announce: deque[SimHost] = deque()
        self._gap = FIRST_GAP
        self._next_round = 0.0
        self._run = clock.uuid()
        self._sequence = ReportSequence(clock)
        self._providers = providers
        self._to_recall = [host.root for host in hosts if not host.metal] if providers else []

    # What it is told to do

    async def build(self, order: BuildOrdered) -> AgentReported | None:
        await self._power.wait()
        verdict = self.ledger.ordered(order)
        if isinstance(verdict, AgentReported):
            return verdict
        key = order.build, order.attempt
        fate = self.faults.fate(*key)
        if verdict == "start":
            seconds = HANG_SECONDS if fate.kind == "hang" else fate.seconds
            self._jobs[key] = _Job(asyncio.get_running_loop().time() + seconds)
            self._building[order.root] += 1
            self._count_down()
        how = await self._end_of(self._jobs[key])
        if how == "handed over":
            return None
        if how == "lost":
            await self._power.wait()
        wanted = key in self.ledger.running
        self._forget(key, order.root)
        if not wanted:  # destroyed meanwhile, which was reported then
            return None
        if how == "lost":
            outcome = report(order, "failed", cause="the agent lost power while it was building")
        elif fate.kind == "built":
            outcome = report(order, "built")
        else:
            cause = fate.cause or "the build hung"
            outcome = report(order, "failed", retry=fate.kind != "abort", cause=cause)
        self.ledger.finished(outcome)
        return outcome

    async def destroy(self, order: DestroyOrdered) -> AgentReported:
        await self._power.wait()
        ending = self.ledger.running_upto(order)
        outcome = self.ledger.destroyed(order)
        for key in ending:
            self._jobs[key].tell("destroyed")
        return outcome

    async def _end_of(self, job: _Job) -> How:
        loop = asyncio.get_running_loop()
        job.tell("handed over")
        if job.lost:
            return "lost"
        if job.due <= loop.time():
            return "done"
        job.waiter = loop.create_future()
        alarm = loop.call_at(job.due, job.tell, "done")
        try:
            return await job.waiter
        finally:
            alarm.cancel()

    def _forget(self, key: Key, root: str) -> None:
        self.ledger.running.discard(key)
        if self._jobs.pop(key, None) is not None:
            self._building[root] -= 1

    # Its power supply

    def _count_down(self) -> None:
        if not self._until_crash:
            return
        self._until_crash -= 1
        if not self._until_crash:
            self._power.clear()
            for job in self._jobs.values():
                job.lost = True
                job.tell("lost")
            asyncio.get_running_loop().call_later(self.crashes.away, self._come_back)

    def _come_back(self) -> None:
        self._crashed += 1
        self._until_crash = self.crashes.next_after(self.agent, self._crashed)
        self._gap, self._next_round = FIRST_GAP, 0.0
        self._power.set()

    # What it tells of its hosts

    async def beat(self) -> Sequence[HostReported]:
        """The state of all hosts, while there is power."""
        if not self._power.is_set():
            return []
        sequence = self._sequence.next()
        return [
            HostReported(
                cell=self.cell,
                agent=self.agent,
                sequence=sequence,
                run=self._run,
                period=self.period,
                hosts=tuple(map(self._state, self.hosts[start : start + HOSTS_IN_A_REPORT])),
            )
            for start in range(0, len(self.hosts), HOSTS_IN_A_REPORT)
        ]

    async def announce(self) -> Sequence[InventoryReported | NodeChanged]:
        """Some of the inventories that are due: all of them at the start, after a crash, and now and then."""
        await self._recall()
        now = self.clock.monotonic()
        if not self._power.is_set():
            return []
        if now >= self._next_round and not self._to_announce:
            self._to_announce.extend(self.hosts)
            self._next_round = now + self._gap
            self._gap = min(2 * self._gap, self.announce_every)
        sequence = self._sequence.next()
        chunk = min(len(self._to_announce), HOSTS_IN_A_REPORT)
        return [self._said_of(self._to_announce.popleft(), sequence) for _ in range(chunk)]

    async def _recall(self) -> None:
        """What was reported of these hosts before, by whomever: what we report comes after it."""
        while self._providers is not None and self._to_recall:
            some = self._to_recall[-HOSTS_IN_A_REPORT:]
            found = await self._providers(FindProviders(ids=tuple(some), parts=("owner",)))
            for one in found.providers:
                self._sequence.follow(one.sequence)
            del self._to_recall[-len(some) :]

    def _state(self, host: SimHost) -> HostState:
        building = self._building[host.root]
        minute = int(self.clock.now() // 60)
        temperature = 22.0 + 3.0 * building + 8.0 * draw(host.root, minute)
        return HostState(
            root=host.root,
            host=host.host,
            zone=host.zone,
            building=building,
            load=float(building),
            metrics={"temperature": round(temperature, 1)},
        )

    def _said_of(self, host: SimHost, sequence: int) -> InventoryReported | NodeChanged:
        if host.metal:
            return self._enrolled(host)
        provider = ProviderReport(
            id=host.root,
            name=host.host,
            inventories=dict(host.inventory),
            traits=host.traits,
            aggregates=host.aggregates,
        )
        return InventoryReported(
            root=host.root,
            host=host.host,
            cell=self.cell,
            agent=self.agent,
            zone=host.zone,
            sequence=sequence,
            providers=(provider, *host.children),
        )

    def _enrolled(self, host: SimHost) -> NodeChanged:
        """A node as it was first enrolled: so long ago that whatever happened to it since counts for more."""
        return NodeChanged(
            event="create",
            node=host.root,
            name=host.host,
            at=1.0,
            cell=self.cell,
            agent=self.agent,
            resource_class=host.metal,
            provision_state="available",
            traits=host.traits,
            zone=host.zone,
        )


def compute_sim(
    agent: str,
    cell: str,
    hosts: Sequence[SimHost],
    *,
    faults: FaultPlan | None = None,
    crashes: CrashPlan | None = None,
    period: float = 10.0,
    announce_every: float = 300.0,
    concurrency: int = 5000,
    clock: Clock | None = None,
    remembered: int = REMEMBERED,
    providers: Ask[FindProviders, ProvidersFound] | None = None,
) -> Worker:
    """An agent that builds on these hosts; with other faults it fails, with other crashes it goes away.

    Where it can ask for `providers`, its reports count even if an earlier run's clock was ahead.
    """
    simulated = _Agent(
        agent,
        cell,
        hosts,
        faults or FaultPlan(),
        crashes or CrashPlan(),
        period,
        announce_every,
        clock or Clock(),
        remembered,
        providers,
    )
    return Worker(
        f"agent.{agent}",
        consumes=[
            on(AGENT_BUILD.at(agent=agent), simulated.build, emits=[AGENT_REPORT], concurrency=concurrency),
            on(AGENT_DESTROY.at(agent=agent), simulated.destroy, emits=[AGENT_REPORT]),
        ],
        asks=[PROVIDERS] if providers else [],
        timers=[
            every(period, simulated.beat, emits=[HOST_REPORTED], at_once=True),
            every(0.1, simulated.announce, emits=[INVENTORY_REPORTED, IRONIC_NODE], at_once=True),
        ],
    )
