"""A simulated agent: builds what it is ordered to, after a while, as its fault plan says, and loses power.

An order is unsettled for as long as its build runs: when the agent is killed, it comes again.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from bus.agent_builds import AgentBuilds, Key, report
from bus.messages import AgentReported, BuildOrdered, DestroyOrdered
from compute_sim.core import CrashPlan, Fate, FaultPlan
from compute_sim.guests import Guests

HANG_SECONDS = 1500.0  # less than the half hour after which RabbitMQ takes an order back from a silent reader

How = Literal["done", "lost", "destroyed", "handed over"]


@dataclass(eq=False)
class AgentDisk:
    """What outlives an agent's process, where it is kept: what became of its orders, and its guests."""

    builds: AgentBuilds = field(default_factory=AgentBuilds)
    hosted: Guests = field(default_factory=Guests)

    @property
    def guests(self) -> dict[str, dict[int, str]]:
        """By build and attempt: on which root."""
        return self.hosted.there

    def begin(self, order: BuildOrdered) -> None:
        """From here on something of it is there, until it is removed."""
        self.hosted.add(order)

    def remove(self, build: str, attempts: range) -> None:
        self.hosted.remove(build, attempts)

    def holds(self, order: BuildOrdered) -> bool:
        return order.attempt in self.guests.get(order.build, ())


@dataclass(eq=False, slots=True)
class _Job:
    """A running build. Whoever was handed the order last waits for its end; the others need not."""

    due: float
    lost: bool = False  # the power failed
    waiter: asyncio.Future[How] | None = None

    def tell(self, how: How) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(how)


class SimulatedAgent:
    """One agent: its orders, its guests, one power supply for all of its hosts."""

    def __init__(self, agent: str, faults: FaultPlan, crashes: CrashPlan, disk: AgentDisk) -> None:
        self.agent = agent
        self.faults = faults
        self.crashes = crashes
        self.disk = disk
        self.building: Counter[str] = Counter()  # by root
        self.crashed = 0
        disk.builds.running.clear()  # what an earlier process was at is begun again when it is ordered again
        self._jobs: dict[Key, _Job] = {}
        self._power = asyncio.Event()
        self._power.set()
        self._until_crash = crashes.next_after(agent, 0)

    @property
    def powered(self) -> bool:
        return self._power.is_set()

    # What it is told to do

    async def build(self, order: BuildOrdered) -> AgentReported | None:
        await self._power.wait()
        verdict = self.disk.builds.ordered(order)
        if isinstance(verdict, AgentReported):
            return verdict
        key = order.build, order.attempt
        fate = self.faults.fate(*key)
        if verdict == "start":
            seconds = HANG_SECONDS if fate.kind == "hang" else fate.seconds
            self._jobs[key] = _Job(asyncio.get_running_loop().time() + seconds)
            self.building[order.root] += 1
            self.disk.begin(order)
            self._count_down()
        how = await self._end_of(self._jobs[key])
        if how == "handed over":
            return None
        if how == "lost":
            await self._power.wait()
        wanted = key in self.disk.builds.running
        self._forget(key, order.root)
        if not wanted:  # destroyed meanwhile, which was reported then
            return None
        outcome = self._outcome(order, fate, lost=how == "lost")
        self.disk.builds.finished(outcome)
        return outcome

    async def destroy(self, order: DestroyOrdered) -> AgentReported:
        await self._power.wait()
        ending = self.disk.builds.running_upto(order)
        outcome = self.disk.builds.destroyed(order)
        self.disk.remove(order.build, range(order.attempt + 1))
        for key in ending:
            self._jobs[key].tell("destroyed")
        return outcome

    def _outcome(self, order: BuildOrdered, fate: Fate, *, lost: bool) -> AgentReported:
        """What failed as planned has been cleaned up after; what broke off leaves what there was."""
        if not lost and fate.kind == "built":
            return report(order, "built")
        if not lost and fate.kind != "hang":
            self.disk.remove(order.build, range(order.attempt, order.attempt + 1))
        cause = "the agent lost power while it was building" if lost else fate.cause or "the build hung"
        leftover = self.disk.holds(order)
        retry = lost or fate.kind != "abort"
        return report(order, "failed", retry=retry, cause=cause, leftover=leftover)

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
        self.disk.builds.running.discard(key)
        if self._jobs.pop(key, None) is not None:
            self.building[root] -= 1

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
        self.crashed += 1
        self._until_crash = self.crashes.next_after(self.agent, self.crashed)
        self._power.set()
