"""A simulated agent: builds what it is ordered to, after a while, as its fault plan says, and loses power.

An order is unsettled for as long as its build runs: when the agent is killed, it comes again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from bus.agent_builds import Key, report
from bus.build_orders import allocations_of, reshaped_mappings
from bus.claims import keeper
from bus.messages import AgentReported, BuildOrdered, DestroyOrdered
from bus.protocol import Ask
from bus.resources import AllocationsFound, FindAllocations
from compute_sim.core.faults import CrashPlan, Fate, FaultPlan
from compute_sim.disk import AgentDisk

NOTHING_HERE = "placement has given it nothing on this host, or gives it nothing any more"
HANG_SECONDS = 1500.0  # less than the half hour after which RabbitMQ takes an order back from a silent reader

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


class SimulatedAgent:
    """One agent: its orders, its guests, one power supply for all of its hosts."""

    def __init__(
        self,
        agent: str,
        faults: FaultPlan,
        crashes: CrashPlan,
        disk: AgentDisk,
        use_changed: Callable[[str], None] = lambda root: None,
        allocations: Ask[FindAllocations, AllocationsFound] | None = None,
    ) -> None:
        self.agent = agent
        self.allocations = allocations  # what placement has given whom
        self.use_changed = use_changed  # told of a host whenever a guest begins or ends there
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
        if self._may_be_elsewhere(order):
            given = await self._as_given(order)
            await self._power.wait()
            if given is None:
                return await self._over(report(order, "failed", cause=NOTHING_HERE))
            order = given
        verdict = self.disk.builds.ordered(order)
        if isinstance(verdict, AgentReported):
            await self.disk.settled()
            return verdict
        key = order.build, order.attempt
        if verdict == "start" and (why := self.disk.devices.refusal(key, allocations_of(order))):
            return await self._over(report(order, "failed", cause=f"the host cannot hold it: {why}"))
        fate = self.faults.fate(*key)
        if verdict == "start":
            seconds = HANG_SECONDS if fate.kind == "hang" else fate.seconds
            self._jobs[key] = _Job(asyncio.get_running_loop().time() + seconds)
            self.building[order.root] += 1
            self.disk.begin(order)
            self.use_changed(order.root)
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
        return await self._over(self._outcome(order, fate, lost=how == "lost"))

    def _may_be_elsewhere(self, order: BuildOrdered) -> bool:
        """Is it to take what this host has not, or not any more? While it was on its way the host may have
        been reshaped."""
        if self.allocations is None or self.disk.builds.known_to_be(order):
            return False
        return self.disk.devices.misplaced(allocations_of(order))

    async def _as_given(self, order: BuildOrdered) -> BuildOrdered | None:
        """The order with what placement has given it here by now, or keeps for it; None: nothing."""
        assert self.allocations is not None
        kept = keeper(order.build, order.attempt)
        asked = FindAllocations(consumers=(order.build, kept), cell=order.cell)
        held = {one.id: one.allocations for one in (await self.allocations(asked)).consumers}
        for given in (held.get(kept, {}), held.get(order.build, {})):
            if self.disk.devices.on_root(order.root, given):
                mappings = reshaped_mappings(order.mappings, allocations_of(order), given)
                return replace(order, allocations=given, mappings=mappings)
        return None

    async def _over(self, outcome: AgentReported) -> AgentReported:
        """What is said of an attempt is known for good before it is said."""
        self.disk.finished(outcome)
        await self.disk.settled()
        return outcome

    async def destroy(self, order: DestroyOrdered) -> AgentReported:
        await self._power.wait()
        ending = self.disk.builds.running_upto(order)
        outcome = self.disk.destroyed(order)
        for key in ending:
            self._jobs[key].tell("destroyed")
        self.use_changed(order.root)
        await self.disk.settled()
        return outcome

    def _outcome(self, order: BuildOrdered, fate: Fate, *, lost: bool) -> AgentReported:
        """What failed as planned has been cleaned up after; what broke off leaves what there was."""
        if not lost and fate.kind == "built":
            return report(order, "built")
        if not lost and fate.kind != "hang":
            self.disk.remove(order.build, range(order.attempt, order.attempt + 1))
            self.use_changed(order.root)
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
